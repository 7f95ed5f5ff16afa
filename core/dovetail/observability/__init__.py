"""What dovetail says of itself: log lines, metrics, and the stat loggers that are plugins."""
