"""What a checkpoint's files say, read without torch and without transformers."""
