"""dovetail beside its peers on a CPU: `python -m benchmarks.peers.run`, from a checkout."""
