"""Layouts of a checkpoint's settings: the choices of --config-format.

`value` names the function that reads one (see `config.formats`); None recognises it from the files.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="recognised from the files in the folder", value=None)
HF = Value(
    summary="config.json as transformers writes it",
    value="dovetail.config.checkpoint.hf:read_config",
)
GGUF = Value(
    summary="the metadata of a GGUF file", value="dovetail_plugins.gguf._config:read_config"
)
MISTRAL = Value(
    summary="params.json as Mistral publishes it",
    value="dovetail_plugins.mistral._params:read_config",
)
