"""Media processors that replace transformers' own; model facts name them."""
