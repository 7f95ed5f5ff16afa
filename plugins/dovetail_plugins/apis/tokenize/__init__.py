"""/tokenize, /detokenize and information about the tokenizer."""
