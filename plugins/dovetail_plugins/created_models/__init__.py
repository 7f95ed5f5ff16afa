"""Models that users make of others: a Modelfile by name, and uploaded files by digest."""
