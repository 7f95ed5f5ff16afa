"""Engines of several machines behind one server: how they come, are driven, and leave."""
