"""How a checkpoint says that it is stored quantized: in config.json, or in a file beside it.

Writers older than config.json's `quantization_config` have a file of their own, or another key.
Knows where it stands and which method is meant, not what the settings mean.
Sources: AutoGPTQ (quantize_config.json), AutoAWQ (quant_config.json), ModelOpt
(hf_quant_config.json), llm-compressor's first versions (`compression_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.json_files import read_json

KEY, OLDER_KEY, METHOD = "quantization_config", "compression_config", "quant_method"
OTHER_NAMES = {"compressed_tensors": "compressed-tensors"}
FILES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("hf_quant_config.json", (("quantization", "modelopt"), ("quant_algo", "modelopt"))),
    ("quantize_config.json", (("w_bit", "awq"), ("desc_act", "gptq"))),
    ("quant_config.json", (("w_bit", "awq"),)),
)
"""Files, and of which method they are if they do not name it: that of the first key they have."""


def add_quantization(path: Path, config: dict[str, Any]) -> None:
    """Complete config.json's settings with what the folder `path` says elsewhere of how it is
    quantized, and its method's name by the one spelling used here. Mutates: config

    Raises: ConfigError for a file that is no JSON object.
    """
    stored = config.get(KEY) or config.get(OLDER_KEY) or _beside(path)
    if not isinstance(stored, Mapping):
        return
    method = stored.get(METHOD)
    if method is None and stored is config.get(OLDER_KEY):
        method = "compressed-tensors"
    if isinstance(method, str):
        name = method.lower().rpartition("/")[2]  # some writers put their own name before it
        stored = {**stored, METHOD: OTHER_NAMES.get(name, name)}
    config[KEY] = dict(stored)


def _beside(path: Path) -> dict[str, Any] | None:
    """Return the settings of the first file that names a method or shows it by its keys."""
    for file, signs in FILES:
        found = read_json(path / file, is_required=False)
        shown = next((method for key, method in signs if key in found), None)
        if isinstance(found.get(METHOD), str) or shown:
            return {METHOD: shown, **found}
    return None
