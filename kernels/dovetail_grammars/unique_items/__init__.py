"""Where arrays whose items are unique are, in a schema and in an answer as it is written."""
