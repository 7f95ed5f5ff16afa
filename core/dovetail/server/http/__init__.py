"""What surrounds every route: middleware, errors, limits, admission. Independent of the routes."""
