"""/score and /rerank: how well texts go together."""
