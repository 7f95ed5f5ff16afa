"""What the endpoints of models that pool have in common: vectors, classes and scores of prompts."""
