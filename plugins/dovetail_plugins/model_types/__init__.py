"""What must be known of a model type before its code is imported: one file per family."""
