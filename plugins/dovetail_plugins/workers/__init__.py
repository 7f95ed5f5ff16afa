"""Workers: one rank's life on one device."""
