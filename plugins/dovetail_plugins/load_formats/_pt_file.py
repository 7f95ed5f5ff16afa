"""One torch.save file as a dict of tensors. Anything else in it is refused, never run."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch
from torch.serialization import default_restore_location
from torch.types import Storage

from dovetail.errors import ConfigError

HQQ_FILE = "qmodel.pt"
WHERE = "--pt-load-map-location"
Place = Callable[[Storage, str], Storage]


def read_tensors(path: Path, places: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return name -> tensor, each on the device that `places` gives for the one it was saved on.

    Files of the zip kind are mapped; older ones are read whole.
    Raises: ConfigError when the file is cut, holds more than tensors, or a device is absent.
    """
    place = placing(places)
    try:
        is_zip = zipfile.is_zipfile(path)  # raises too, for a damaged directory
        content = torch.load(path, map_location=place, weights_only=True, mmap=is_zip)
        _check_is_not_hqq(path, content)
    except ConfigError as error:
        if error.where is not None:
            raise
        raise ConfigError(f"{path.name}: {error.what}", where=WHERE, fix=error.fix) from error
    except Exception as error:
        _check_is_not_hqq(path, None)
        # torch raises many types here, down to EOFError; all of them mean this one file.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"cannot be read as a file of tensors alone: {reason}",
            where=str(path),
            fix="download the file again, or convert the checkpoint to safetensors.",
        ) from error
    return _named_tensors(path, content)


def _check_is_not_hqq(path: Path, content: object) -> None:
    """Raises: ConfigError for a model in the form that hqq itself saves, tensors or not."""
    is_flat = isinstance(content, dict) and all(torch.is_tensor(v) for v in content.values())
    if path.name == HQQ_FILE and not is_flat:
        raise ConfigError(
            "it is a model as hqq saves it (save_quantized), which is not read.",
            where=str(path),
            fix="save the model with transformers (HqqConfig and save_pretrained), or serve the "
            "original checkpoint with `--quantization int4`.",
        )


def _named_tensors(path: Path, content: object) -> dict[str, torch.Tensor]:
    """Return the content as name -> tensor. Raises: ConfigError for anything else."""
    if not isinstance(content, dict):
        raise ConfigError(
            f"holds a {type(content).__name__}, not a dict of named tensors.", where=str(path)
        )
    for name, value in content.items():
        if not isinstance(value, torch.Tensor):
            raise ConfigError(
                f'entry "{name}" is a {type(value).__name__}, not a tensor.',
                where=str(path),
                fix="save only the model's state_dict.",
            )
        fault = _fault(value)
        if fault:
            raise ConfigError(
                f'entry "{name}" {fault}',
                where=str(path),
                fix="save the state_dict of a loaded model with dense, unpacked tensors.",
            )
    return {str(name): tensor for name, tensor in content.items()}


def _fault(tensor: torch.Tensor) -> str | None:
    """Return why a tensor is not the plain numbers that the file holds for it, or None."""
    if tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided:
        kind = "meta" if tensor.is_meta else tensor.type()
        return f"is a tensor without plain numbers ({kind})"
    held_bytes = tensor.untyped_storage().nbytes()
    if tensor.nbytes > held_bytes:  # one number repeated: a small file could ask for any memory
        return f"is a tensor of {tensor.nbytes} bytes, for which the file holds {held_bytes}"
    return None


def placing(places: Mapping[str, str]) -> Place:
    """Return the function that moves a storage from the device it was saved on to the one it is
    read onto.

    Raises: ConfigError, when called, if that device is not available or is "meta".
    """

    def place(storage: Storage, stored: str) -> Storage:
        wanted = places.get(stored, places.get("*", stored))
        try:
            if wanted.partition(":")[0] != "meta":
                return cast(Storage, default_restore_location(storage, wanted))
            reason = "meta keeps no numbers"
        except (RuntimeError, AssertionError, AttributeError) as error:
            reason = str(error).strip().partition(". ")[0].partition("\n")[0]
        raise ConfigError(
            f'tensors of "{stored}" cannot be read onto "{wanted}": {reason}',
            fix=f"read them onto the CPU with {WHERE}.{stored} cpu, or leave the flag out.",
        )

    return place
