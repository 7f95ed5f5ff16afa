"""Bodies of requests: their fields, what each means here, and the fields without effect."""
