"""Facts of a model type that are needed before its code is imported: one file per family."""
