"""What surrounds every route: middleware, errors, limits, admission. Knows no route."""
