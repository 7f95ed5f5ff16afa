"""/tokenize, /detokenize and what is known of the tokenizer."""
