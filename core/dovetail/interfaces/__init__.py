"""What a plugin promises: one file per kind, importing nothing else of dovetail but errors.

Reading order: plugin, spec, step, then the kind you write.
"""

from dovetail.interfaces.plugin import Info, NoOptions, Plugin, Value

__all__ = ["Info", "NoOptions", "Plugin", "Value"]
