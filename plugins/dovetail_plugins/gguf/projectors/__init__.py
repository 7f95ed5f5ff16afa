"""Projector files of GGUF models (mmproj): which one is taken, its settings and its tensors."""
