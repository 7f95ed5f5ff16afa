"""Tools and thinking in answers: parsers, and the constraints that they set."""
