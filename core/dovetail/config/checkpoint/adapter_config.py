"""adapter_config.json: PEFT's description of an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.weights_check import WHOLE_MODELS, is_whole_model
from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, json_value

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Names of weight files; the first that exists is used."""


def adapter_config(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json, or of a file the type: its suffix in capitals, which stores by
    digest leave out. Raises: ConfigError"""
    if folder.is_file():
        suffix = folder.suffix or (WHOLE_MODELS[0] if is_whole_model(folder) else "")
        return {"peft_type": suffix[1:].upper()}
    path = folder / CONFIG
    try:
        config = json_value(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            "there is no such file.", where=str(path), fix="name the folder of an adapter."
        ) from error
    except InvalidJson as error:
        raise ConfigError(f"the file cannot be read: it {error}", where=str(path)) from error
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the file cannot be read: {error}.", where=str(path)) from error
    if not isinstance(config, dict):
        raise ConfigError("the file does not hold an object.", where=str(path))
    return config
