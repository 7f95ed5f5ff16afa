"""Gates: who sends a request, what they may do, and how much."""
