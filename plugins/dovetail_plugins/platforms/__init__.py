"""Platforms: types of device, and what an engine on each takes and cannot take."""
