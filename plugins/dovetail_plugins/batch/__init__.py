"""`dovetail run-batch`: a file of OpenAI requests through the server's routes, without a socket.

Knows the routes only as one ASGI application; the engine below them is started as for a server.
"""
