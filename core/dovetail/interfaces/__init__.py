"""Plugin interfaces: one file per kind, importing only each other and errors from dovetail.

Reading order: plugin, spec, step, then the kind you write.
"""

from dovetail.interfaces.plugin import Info, NoOptions, Plugin, Value

__all__ = ["Info", "NoOptions", "Plugin", "Value"]
