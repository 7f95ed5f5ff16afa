"""Routers: choose one of several engines for a request."""
