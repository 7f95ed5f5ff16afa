"""Routes that change the engine; only with --enable-dev-endpoints."""
