"""The contents of a checkpoint's files, read without torch and without transformers."""
