"""Where checkpoints come from: folders, stores of this machine, and hubs."""
