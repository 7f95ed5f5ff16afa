"""Ways to run a step faster: recorded calls, CUDA graphs, torch.compile, half batches."""
