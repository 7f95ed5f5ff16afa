"""One folder, one family of endpoints: routes, bodies, answers."""
