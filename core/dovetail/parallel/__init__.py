"""Ranks: the part of the model that this process holds, and how ranks exchange tensors."""
