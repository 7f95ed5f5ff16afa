"""Ranks: how one executor drives several workers, each in a process of its own."""
