"""Checkpoints under the class names of model cards, read as those of classes that serve them."""
