"""From messages to a prompt: what surrounds a renderer, the same for all of them."""
