"""Find the adapters that requests name."""
