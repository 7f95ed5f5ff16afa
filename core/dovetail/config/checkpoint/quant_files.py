"""How a checkpoint states that it is quantized, and the method that reads these settings.

It does so in config.json or, if its writer is older than `quantization_config`, under another key
or in the writer's own file. Knows which method is meant, not what the settings mean.

Sources: AutoGPTQ (quantize_config.json), AutoAWQ (quant_config.json), ModelOpt
(hf_quant_config.json), llm-compressor's first versions (`compression_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec, Selection
from dovetail.interfaces.quantization import QuantMethod

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that code raises for settings of other types, or of impossible sizes."""
KEY, OLDER_KEY, METHOD = "quantization_config", "compression_config", "quant_method"
OTHER_NAMES = {"compressed_tensors": "compressed-tensors"}
FILES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("hf_quant_config.json", (("quantization", "modelopt"), ("quant_algo", "modelopt"))),
    ("quantize_config.json", (("w_bit", "awq"), ("desc_act", "gptq"))),
    ("quant_config.json", (("w_bit", "awq"),)),
)
"""File -> (key, method) pairs. If the file names no method, the first key it has decides."""


def add_quantization(
    path: Path, config: dict[str, Any], part: Mapping[str, Any] | None = None
) -> None:
    """Add quantization settings to config.json's content, with a normalized method name.

    They come from the config, its text `part`, or other files in the folder `path`. Mutates:
    config. Raises: ConfigError for a file that is not a JSON object.
    """
    stored = _stated(config) or _stated(part or {}) or _beside(path)
    if not isinstance(stored, dict):
        return
    method = stored.get(METHOD)
    if isinstance(method, str):
        name = method.lower().rpartition("/")[2]  # some writers prefix their own name
        stored = {**stored, METHOD: OTHER_NAMES.get(name, name)}
    config[KEY] = stored


def _stated(config: Mapping[str, Any]) -> Any:
    """Return the quantization settings in a config, None if there are none."""
    older = config.get(OLDER_KEY)
    if isinstance(older, dict):
        older = {METHOD: "compressed-tensors", **older}
    return config.get(KEY) or older or None


def build_method(selection: Selection, model: ModelSpec) -> QuantMethod:
    """Return the selected method for a checkpoint.

    Raises: ConfigError if the settings are not valid for the method, or have wrong types.
    """
    plugin: type[QuantMethod] = registry.admin.load_selection(selection)
    options = registry.admin.build_options(selection)
    try:
        return plugin(options, model)
    except MALFORMED as error:
        raise ConfigError(
            f'{KEY} is not valid for the method "{selection.name}": '
            f"{type(error).__name__}: {error}.",
            where=str(Path(model.path, "config.json")),
            fix="download the file again, or see the documentation of the tool that wrote it.",
        ) from error


def _beside(path: Path) -> dict[str, Any] | None:
    """Return the settings in the first file that names a method or implies it by its keys."""
    for file, signs in FILES:
        found = read_json(path / file, is_required=False)
        shown = next((method for key, method in signs if key in found), None)
        if isinstance(found.get(METHOD), str) or shown:
            return {METHOD: shown, **found}
    return None
