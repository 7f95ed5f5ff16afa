"""Mixtures of experts: the matrices of a layer's experts, and the rank of each."""

from dovetail import moved

__getattr__ = moved.attributes(__name__)
