"""/score and /rerank: the relevance of texts to each other."""
