"""Where default sampling settings come from: the named choices of --generation-config.

Any other word is a folder with a generation_config.json. `value` "model" is the model's folder,
None is nowhere.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="generation_config.json in the model's folder", value="model")
DOVETAIL = Value(summary="dovetail's own defaults", value=None)
VLLM = Value(summary="the same as dovetail, for command lines of vLLM", value=None)
