"""The HTTP server, in layers: launch > app > api (endpoint families) > generate > http.

It uses the engine only through `engine.client.async_engine.AsyncEngine` and imports neither torch
nor transformers.
"""
