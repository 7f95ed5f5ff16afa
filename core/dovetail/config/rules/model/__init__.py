"""Rules about the model: its class, its code, its tokenizer and its chat template."""
