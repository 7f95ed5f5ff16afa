"""What the user asked for: frozen dataclasses whose fields are the flags.

`resolve` turns them into one EngineSpec. Importing this package loads nothing heavy.
"""
