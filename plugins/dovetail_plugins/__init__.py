"""Every built-in implementation: one folder per kind, one file per name a flag can carry."""
