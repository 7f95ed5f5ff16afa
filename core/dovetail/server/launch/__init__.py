"""From the flags to a server that listens, and to its end. Knows no route's shapes."""
