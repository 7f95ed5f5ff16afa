"""Loading a model's weights, and moving them between device, host and ranks."""
