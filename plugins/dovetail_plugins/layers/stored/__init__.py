"""Layers that a checkpoint stores quantized: their tensors, names and products."""
