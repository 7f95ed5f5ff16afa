"""Several models behind one address: each is a server of its own, started and ended as needed.

The front process has no engine: it finds the model that a request names, sees that it is loaded,
and hands the request to the model's own server on a private Unix socket.
"""
