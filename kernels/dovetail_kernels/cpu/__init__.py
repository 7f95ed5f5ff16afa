"""The native CPU library: its sources, how it is built, and how it is loaded."""
