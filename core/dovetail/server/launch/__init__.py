"""The life of a server, from flags to shutdown. Independent of the routes."""
