"""Sessions on WebSockets: sound comes in while it is recorded, its text goes out."""
