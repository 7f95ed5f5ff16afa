"""Connects the engines of another machine to a server that runs elsewhere (`--headless`)."""
