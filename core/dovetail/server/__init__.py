"""HTTP: protocol (bodies), render (messages to prompt), events (text to events), routes (thin).

Knows the engine only through `engine.client.async_engine.AsyncEngine`; imports neither torch nor
transformers.
"""
