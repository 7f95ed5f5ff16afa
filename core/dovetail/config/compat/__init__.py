"""Names that other generations and servers have: what each means here, or what is missing."""
