"""One engine a file, all behind drivers.trace.Driver; each imported in its engine's own venv."""
