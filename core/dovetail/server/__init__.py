"""HTTP, in floors: launch over app over api (families of endpoints) over generate over http.

Knows the engine only through `engine.client.async_engine.AsyncEngine`; imports neither torch nor
transformers.
"""
