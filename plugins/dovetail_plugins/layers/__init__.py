"""Layers that models share and the runner does not know: encoders, states, experts, indexers."""
