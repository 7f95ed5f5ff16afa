"""The vocabulary model plugins are written in: layers that know ranks, and how weights reach them.

Knows no model family, no scheduler and no checkpoint file format.
"""
