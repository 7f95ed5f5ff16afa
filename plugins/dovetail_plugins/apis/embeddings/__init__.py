"""/v1/embeddings: vectors of texts, in OpenAI's API."""
