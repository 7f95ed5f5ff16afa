"""Models on this machine by name: the hub's cache, folders, and the stores of other programs.

Read-only. Opens no connection and imports no store's library, so a listing is as fast as the file
system.
"""
