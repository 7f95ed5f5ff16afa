"""Several models behind one address, each with its own server, started and stopped as needed.

The front process has no engine. It finds the model that a request names, makes sure that it is
loaded, and forwards the request to the model's own server on a private Unix socket.
"""
