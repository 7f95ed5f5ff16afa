"""The routes, thin: body in, calls, body out. `app` puts them together."""
