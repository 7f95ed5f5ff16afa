"""Reports of the configuration: help, reference pages, and the resolved settings."""
