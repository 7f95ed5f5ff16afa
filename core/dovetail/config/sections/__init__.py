"""Settings: one dataclass per section of flags, and the definition of a flag."""
