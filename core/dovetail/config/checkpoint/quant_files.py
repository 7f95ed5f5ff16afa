"""How a checkpoint says that it is stored quantized, and the method that reads what it says.

It says so in config.json or, if its writer is older than `quantization_config`, under another key
or in a file of the writer's own. Knows which method is meant, not what the settings mean.
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
from dovetail.interfaces.quantization import QuantMethod
from dovetail.interfaces.spec import ModelSpec, Selection

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What code raises that is given settings of other types, or of sizes that nothing has."""
KEY, OLDER_KEY, METHOD = "quantization_config", "compression_config", "quant_method"
OTHER_NAMES = {"compressed_tensors": "compressed-tensors"}
FILES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("hf_quant_config.json", (("quantization", "modelopt"), ("quant_algo", "modelopt"))),
    ("quantize_config.json", (("w_bit", "awq"), ("desc_act", "gptq"))),
    ("quant_config.json", (("w_bit", "awq"),)),
)
"""Files, and of which method they are if they do not name it: that of the first key they have."""


def add_quantization(
    path: Path, config: dict[str, Any], part: Mapping[str, Any] | None = None
) -> None:
    """Complete config.json's settings with what their text `part`, or the folder `path`, says
    elsewhere of how it is quantized, and its method's name by the one spelling used here. Mutates:
    config

    Raises: ConfigError for a file that is not a JSON object.
    """
    stored = _stated(config) or _stated(part or {}) or _beside(path)
    if not isinstance(stored, dict):
        return
    method = stored.get(METHOD)
    if isinstance(method, str):
        name = method.lower().rpartition("/")[2]  # some writers put their own name before it
        stored = {**stored, METHOD: OTHER_NAMES.get(name, name)}
    config[KEY] = stored


def _stated(config: Mapping[str, Any]) -> Any:
    """Return what settings say of how a checkpoint is quantized, None for nothing."""
    older = config.get(OLDER_KEY)
    if isinstance(older, dict):
        older = {METHOD: "compressed-tensors", **older}
    return config.get(KEY) or older or None


def build_method(selection: Selection, model: ModelSpec) -> QuantMethod:
    """Return the selected method for a checkpoint.

    Raises: ConfigError where the settings are not what the method takes, be it in their types.
    """
    plugin: type[QuantMethod] = registry.load_selection(selection)
    options = registry.build_options(selection)
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
    """Return the settings of the first file that names a method or shows it by its keys."""
    for file, signs in FILES:
        found = read_json(path / file, is_required=False)
        shown = next((method for key, method in signs if key in found), None)
        if isinstance(found.get(METHOD), str) or shown:
            return {METHOD: shown, **found}
    return None
