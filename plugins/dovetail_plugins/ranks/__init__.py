"""Ranks: how one executor drives several workers, each in its own process."""
