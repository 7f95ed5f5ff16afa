"""Layers that mix the tokens of a row without attention: convolutions, scans, delta rules."""
