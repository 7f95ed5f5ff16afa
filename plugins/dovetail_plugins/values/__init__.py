"""The named constants behind flags whose choices are values: one file per value kind."""
