"""Media processors that stand in for transformers' own; model facts name them."""
