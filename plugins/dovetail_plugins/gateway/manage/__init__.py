"""Managing the models of a gateway over HTTP: load, unload, fetch, make, copy and delete them."""
