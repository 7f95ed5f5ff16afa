"""Ways to write quantized checkpoints: one file a method."""
