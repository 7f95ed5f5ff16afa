"""Engines of other machines behind one server: how they join, are driven, and leave."""
