"""What a GGUF file is written from: a checkpoint's folder, or a GGUF file of plain floats.

Imports no torch until tensors come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.interfaces.data.spec import ModelSpec
from dovetail_plugins.gguf.families import families
from dovetail_plugins.gguf.reading.file import GgufModel, find_file, raw_settings, read_model
from dovetail_plugins.gguf.reading.names import has_head
from dovetail_plugins.gguf.writing.mixtures import DOWN, VALUES, Facts, in_order
from dovetail_plugins.gguf.writing.names import WrittenNames
from dovetail_plugins.gguf.writing.settings import ARCHITECTURES, REFUSED, settings_of

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.gguf.writing.write import Setting, Stored

_OF_PARTS = ("split.", "general.alignment", "general.file_type", "general.quantization_version",
             "quantize.imatrix.")  # fmt: skip
"""Settings that are not those of the new file."""


class Source(Protocol):
    """A model that is written. `facts`: what its mixture depends on."""

    facts: Facts

    def name_of(self, layer: str) -> tuple[str, int | None]:
        """Return GGUF's name of a layer, without ".weight", and an expert's number."""
        ...

    def settings(self) -> dict[str, Setting]:
        """Return the settings of the new file but for those of its types. Raises: ConfigError"""
        ...

    def stored(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Stored]:
        """Yield the tensors of the new file from the source's, some of them quantized."""
        ...


def source_of(model: ModelSpec) -> Source:
    """Return what a model is written from. Raises: ConfigError"""
    file = gguf_file(model)
    return FileSource(model, file) if file else FolderSource(model)


def gguf_file(model: ModelSpec) -> Path | None:
    """Return the GGUF file of a model, None for other checkpoints."""
    path = Path(model.path)
    return None if (path / "config.json").is_file() else find_file(path)


def why_not_written(model: ModelSpec) -> list[str]:
    """Return why a model cannot be written."""
    if model.architecture in ARCHITECTURES or gguf_file(model):
        return []
    reason = REFUSED.get(model.architecture)
    names = ", ".join(ARCHITECTURES)
    return [
        f"{model.architecture} is not written as GGUF"
        + (f": {reason}" if reason else f"; {names} are, and GGUF files of plain floats")
    ]


class FolderSource:
    """A folder of safetensors, whose tensors are renamed and changed as llama.cpp's converters
    do it."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._settings = settings_of(model)
        self._names = WrittenNames(families()[self._architecture].names, model.num_layers)
        is_tied = bool(model.hf_config.get("tie_word_embeddings"))
        self.facts = _facts(model, self._architecture, is_tied=is_tied)

    @property
    def _architecture(self) -> str:
        return str(self._settings["general.architecture"])

    def name_of(self, layer: str) -> tuple[str, int | None]:
        """Return GGUF's name of a layer, or its own, and an expert's number."""
        place = self._names.place(layer)
        return (layer, None) if place is None else place[1:]

    def settings(self) -> dict[str, Setting]:
        """Return the settings, with the tokenizer's."""
        from dovetail_plugins.gguf.vocabulary.write import tokenizer_settings

        folder = Path(self._model.path)
        return {
            **self._settings,
            "general.name": folder.name,
            **tokenizer_settings(folder, self._model.vocab_size),
        }

    def stored(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Stored]:
        """Yield the tensors, and those that hold settings of the rotary embedding."""
        import torch

        from dovetail_plugins.gguf.writing.renamed import renamed
        from dovetail_plugins.gguf.writing.settings import rope_tensors
        from dovetail_plugins.gguf.writing.write import Stored

        yield from renamed(self._model, self._architecture, tensors)
        for name, divisors in rope_tensors(self._model).items():
            yield Stored(name=name, tensor=torch.tensor(divisors))


class FileSource:
    """A GGUF file of plain floats: names, settings and all that is not quantized stay."""

    def __init__(self, model: ModelSpec, file: Path) -> None:
        self._file = file
        source = read_model(file)
        self._stacks = {
            one.name.removesuffix(".weight"): one.shape[0]
            for one in source.extents
            if is_stack(one.name, one.shape)
        }
        self.facts = _facts_of_file(source)

    def name_of(self, layer: str) -> tuple[str, int | None]:
        """Return the layer's name, and an expert's number."""
        stack, _, number = layer.rpartition(".")
        return (stack, int(number)) if stack in self._stacks else (layer, None)

    def settings(self) -> dict[str, Setting]:
        """Return the file's settings, byte by byte."""
        found = raw_settings(self._file)
        return {name: raw for name, raw in found.items() if not name.startswith(_OF_PARTS)}

    def stored(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Stored]:
        """Yield the tensors; experts come when all of a layer's have."""
        from dovetail_plugins.gguf.blocks.types import FLOAT_DTYPES, QUANTIZED
        from dovetail_plugins.gguf.writing.renamed import stacked
        from dovetail_plugins.gguf.writing.write import Stored

        waiting: dict[str, dict[int, torch.Tensor]] = {}
        for full, tensor in tensors:
            layer, _, leaf = full.rpartition(".")
            stem, number = self.name_of(layer)
            kind = leaf if leaf in QUANTIZED else ""
            name = f"{stem}.weight" if kind or leaf in FLOAT_DTYPES else f"{stem}.{leaf}"
            if number is None:
                yield Stored(name=name, tensor=tensor, type=kind)
                continue
            experts = waiting.setdefault(name, {})
            experts[number] = tensor
            if len(experts) == self._stacks[stem]:
                yield Stored(name=name, tensor=stacked(waiting.pop(name)), type=kind)


def is_stack(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of a GGUF file holds a matrix of each expert."""
    return len(shape) == 3 and name.endswith("_exps.weight")


def _facts_of_file(source: GgufModel) -> Facts:
    """Return what the mixture of a file depends on, in llama.cpp's counts: those of the file."""
    architecture = str(source.settings["general.architecture"])

    def first(key: str, default: int) -> int:
        found = source.settings.get(f"{architecture}.{key}", default)
        return int(found[0] if isinstance(found, Sequence) else found)

    heads = first("attention.head_count", 1)
    key_heads = first("attention.head_count_kv", heads)
    weights = [one.name for one in source.extents if one.name.endswith(".weight")]
    names = in_order(name.removesuffix(".weight") for name in weights)
    return Facts(
        architecture=architecture,
        num_layers=first("block_count", 0),
        shared_heads=heads // key_heads if key_heads else 0,
        num_experts=first("expert_count", 0),
        is_tied=not has_head(source.extents),
        values=tuple(name for name in names if name.endswith(VALUES)),
        downs=tuple(name for name in names if DOWN in name),
    )


def _facts(model: ModelSpec, architecture: str, *, is_tied: bool) -> Facts:
    config: dict[str, Any] = dict(model.hf_config)
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return Facts(
        architecture=architecture,
        num_layers=model.num_layers,
        shared_heads=model.num_heads // max(1, model.num_kv_heads),
        num_experts=int(next((config[name] for name in names if config.get(name)), 0)),
        is_tied=is_tied,
    )
