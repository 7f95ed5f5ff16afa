"""How safetensors files are read: the choices of --safetensors-load-strategy.

`value` is the load format's option `reading`.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

LAZY = Value(summary="files are memory-mapped; tensors are read when they are needed", value="lazy")
EAGER = Value(
    summary="each file is read completely at once, for slow or remote disks", value="eager"
)
