"""Programs that `dovetail launch` starts against a server, one file for each."""
