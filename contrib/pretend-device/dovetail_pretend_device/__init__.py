"""A pretend accelerator: a whole device as plugins, without a change to dovetail."""
