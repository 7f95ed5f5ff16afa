"""What a model is run for: the choices of --runner and, for older command lines, of --task.

`value` is "generate", the one thing that models are run for so far.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="chosen by the checkpoint", value="generate")
GENERATE = Value(summary="text generation", value="generate")
