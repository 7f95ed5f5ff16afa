"""/invocations: the only path that hosting services call."""
