"""How the engines of another machine come to a server that runs elsewhere (`--headless`)."""
