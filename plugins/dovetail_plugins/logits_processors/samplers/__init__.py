"""Samplers: processors that shape a row's distribution by numbers of its request."""
