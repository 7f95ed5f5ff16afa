"""Model stores: models on this machine by name."""
