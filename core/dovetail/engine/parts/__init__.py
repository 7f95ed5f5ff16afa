"""The parts of an engine: features that follow its steps."""
