"""The rows of a runner: their tokens, blocks and lengths, and the inputs of each step."""
