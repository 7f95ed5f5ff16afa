"""Where adapters are found that requests name."""
