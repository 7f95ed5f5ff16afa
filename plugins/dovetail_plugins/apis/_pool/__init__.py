"""Code shared by the endpoints of pooling models: vectors, classes and scores of prompts."""
