"""/v1/embeddings: vectors of texts in the OpenAI API."""
