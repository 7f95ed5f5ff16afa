"""Command lines of other servers: newer flags that `serve` takes, and how each is written here."""
