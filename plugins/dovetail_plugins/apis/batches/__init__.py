"""/v1/files and /v1/batches: files of requests, answered in addition to live traffic."""
