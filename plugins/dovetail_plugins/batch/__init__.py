"""`dovetail run-batch`: answers a file of OpenAI requests by the server's routes, without a socket.

It uses the routes only as one ASGI application; the engine starts as for a server.
"""
