"""Routers: which of several engines a request goes to."""
