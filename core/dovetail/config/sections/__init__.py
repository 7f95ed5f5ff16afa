"""What can be asked for: one dataclass per section of flags, and what a flag is."""
