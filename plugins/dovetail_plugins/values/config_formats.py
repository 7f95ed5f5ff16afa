"""Layouts of a checkpoint's settings: the choices of --config-format.

`value` is the layout `config.hf` reads; None recognises it from the files.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="recognised from the files in the folder", value=None)
HF = Value(summary="config.json as transformers writes it", value="hf")
