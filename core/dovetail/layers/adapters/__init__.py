"""Adapter slots of layers: low-rank changes that each token selects by its row."""

from dovetail import moved

__getattr__ = moved.attributes(__name__)
