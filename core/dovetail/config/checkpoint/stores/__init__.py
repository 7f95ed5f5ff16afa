"""Models on this machine by name: the hub's cache, folders, and the stores of other programs.

Looks, and never writes. Opens no connection and imports no library of a store: a listing is as fast
as the file system.
"""
