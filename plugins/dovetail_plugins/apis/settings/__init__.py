"""The settings of this server and their sources."""
