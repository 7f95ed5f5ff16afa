"""Ranks: which part of the model this process holds and how ranks exchange tensors."""
