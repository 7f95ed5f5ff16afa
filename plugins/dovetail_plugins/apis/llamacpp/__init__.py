"""/completion, /infill, /props, /slots and related paths: the API of llama.cpp's server."""
