"""/invocations: the one path that hosting services ask."""
