"""structured-output backends: one file per library."""
