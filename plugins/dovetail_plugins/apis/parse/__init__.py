"""/v1/parse: a model's text as events."""
