"""What workers of devices have in common: they drive a model runner, which can be put to sleep."""
