"""From a prompt and its params to engine requests, checked."""
