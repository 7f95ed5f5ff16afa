"""Mistral: consolidated*.safetensors with params.json, renamed into Hugging Face layout.

Names and the order of rows: see mistral._names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import check_nonempty, weight_files, why_no_folder
from dovetail_plugins.load_formats.safetensors import SafetensorsOptions

if TYPE_CHECKING:
    import torch

INDEX = "consolidated.safetensors.index.json"
PATTERNS = ("consolidated*.safetensors",)
PARAMS = "params.json"


class Mistral(LoadFormat):
    """All tensors of a folder as Mistral publishes it."""

    info = Info(
        summary="Mistral's consolidated safetensors files",
        source="https://github.com/mistralai/mistral-inference",
        requires=("safetensors",),
    )
    capabilities = frozenset({"lazy"})
    Options = SafetensorsOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        if query is None:
            return []
        absent = why_no_folder(query)
        if absent:
            return [absent]
        if not weight_files(query, index=INDEX, patterns=PATTERNS):
            return [f"the folder holds no {PATTERNS[0]}"]
        has_params = (Path(query.path) / PARAMS).is_file()
        return [] if has_params else [f"the folder has no {PARAMS}"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once under its name in Hugging Face layout."""
        from dovetail_plugins.load_formats._shards import READERS, read_shards
        from dovetail_plugins.mistral._names import name_of, rearranger

        files = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
        check_nonempty(checkpoint, files, PATTERNS[0])
        path = Path(checkpoint.path) / PARAMS
        params = read_json(path)
        _check_heads(params, path)
        rearrange, is_skipped = rearranger(params), checkpoint.is_skipped
        if is_skipped is not None:
            checkpoint = replace(checkpoint, is_skipped=lambda name: is_skipped(name_of(name)))
        for name, tensor in read_shards(files, checkpoint, READERS[self.options.reading]):
            _check_rows(name, tensor, params, path)
            renamed = name_of(name)
            yield renamed, rearrange(renamed, tensor)

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Return all headers, under names in Hugging Face layout."""
        from dovetail_plugins.load_formats._safetensors_header import read_headers
        from dovetail_plugins.mistral._names import name_of

        files = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
        check_nonempty(checkpoint, files, PATTERNS[0])
        return (replace(header, name=name_of(header.name)) for header in read_headers(files))

    @classmethod
    def write_sample(cls, folder: str, tensors: Any) -> None:
        """Write a checkpoint whose names are all foreign, for the conformance kit."""
        from safetensors.torch import save_file

        save_file(dict(tensors), Path(folder) / "consolidated.safetensors")
        (Path(folder) / PARAMS).write_text('{"n_heads": 1}', encoding="utf-8")


def _check_heads(params: dict[str, Any], path: Path) -> None:
    """Raises: ConfigError when the numbers of heads are not whole numbers."""
    for key in ("n_heads", "n_kv_heads"):
        value = params.get(key)
        is_absent = value is None and key == "n_kv_heads"
        if not is_absent and (type(value) is not int or value < 1):
            raise ConfigError(
                f'"{key}" is missing or not a positive integer.',
                where=str(path),
                fix="download the file again.",
            )


def _check_rows(name: str, tensor: torch.Tensor, params: dict[str, Any], path: Path) -> None:
    """Raises: ConfigError when the rows of a query or key tensor are not whole pairs per head."""
    words = name.split(".")
    if words[-1] not in ("weight", "bias") or words[-2] not in ("wq", "wk"):
        return
    key = "n_kv_heads" if words[-2] == "wk" and params.get("n_kv_heads") else "n_heads"
    if tensor.ndim == 0 or tensor.shape[0] % (2 * int(params[key])):
        raise ConfigError(
            f'tensor "{name}" has shape {list(tensor.shape)}, whose rows cannot be divided into '
            f"{params[key]} heads of an even size.",
            where=str(path),
            fix=f'check "{key}" in the file.',
        )
