"""Routes that change the engine; there only with --enable-dev-endpoints."""
