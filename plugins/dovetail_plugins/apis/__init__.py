"""The endpoint families, one folder each: routes, bodies, answers."""
