"""Child processes, the channels to them, and what protects processes from each other."""
