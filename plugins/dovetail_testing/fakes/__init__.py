"""Fakes of engines and of the objects that core passes to plugins, in plain Python."""
