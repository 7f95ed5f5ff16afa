"""The named constants behind flags whose choices are no code: one file per value kind."""
