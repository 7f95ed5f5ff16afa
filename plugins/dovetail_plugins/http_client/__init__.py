"""An HTTP/1.1 client: connections, responses while they arrive, server-sent events.

`dovetail.gateway`, `dovetail bench`, tool servers and the commands that talk to a server use it.
"""
