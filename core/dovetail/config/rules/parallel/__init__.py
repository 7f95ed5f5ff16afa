"""Rules about ranks and engines: their number, their machines, and each one's share."""
