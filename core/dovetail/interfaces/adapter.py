"""Adapter: small weights beside a model's own, which a request may ask for by name.

An AdapterMethod reads one sort of checkpoint (LoRA and its kin, vectors before a prompt) and says
what it changes, module by module; core cuts that for a rank, keeps it in numbered slots beside the
layers and applies it to the rows that ask for it. Shape letters: I input, O output features, R
rank, n tokens, E hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import ModelSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChange:
    """What an adapter does to one module of the checkpoint: y = x W^T + b becomes

        y = output_scale (g (x' W^T + scale (x' down^T) up^T) + b) + shift,   x' = input_scale x

    where g = magnitude / the norms of the rows of (W + scale up down), as DoRA has it. What is None
    is left out.
    A `weight` takes the place of W; a `bias` that of b. Of a token table the inputs are the tokens:
    I is the vocabulary.

    Of tables over the vocabulary, W is [V, E]: more rows of a `weight` are those of tokens that the
    adapter adds, whose ids go on from V; `rows` take the place of the rows `row_ids`, which may be
    added ones too. What changes a token table and `is_tied` changes a head that shares it as well,
    unless the adapter has a change of the head.

    Shapes: down [R, I], up [O, R], magnitude, output_scale, shift, bias [O],
    input_scale [I], weight [O or more, I], row_ids [m] int64, rows [m, E]
    """

    down: torch.Tensor | None = None
    up: torch.Tensor | None = None
    scale: float = 1.0
    magnitude: torch.Tensor | None = None
    output_scale: torch.Tensor | None = None
    input_scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    row_ids: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    is_tied: bool = False

    @property
    def is_low_rank(self) -> bool:
        """Return whether the change is a low-rank sum, or nothing."""
        return (
            self.weight is None
            and self.bias is None
            and self.magnitude is None
            and self.shift is None
            and self.output_scale is None
            and self.input_scale is None
            and self.rows is None
        )


class AdapterContent(Protocol):
    """The bytes of an adapter's file. They have their places in `memory` from the start, so that
    tensors can be views of them, and are there once they are read. Shapes: memory [bytes] uint8"""

    @property
    def memory(self) -> torch.Tensor: ...
    @property
    def is_read(self) -> bool: ...

    def read(self) -> None:
        """Read all bytes into memory, unless that has been done. Raises: ConfigError. Mutates: the
        memory"""

    def read_piece(self, start: int, piece: memoryview) -> None:
        """Read bytes from place `start` on into memory of somebody else's. Raises: ConfigError.
        Mutates: piece"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWeights:
    """An adapter as it was read. `changes` are by the module's dotted path in the checkpoint's
    naming; `prompt` are vectors before the first token. It was trained with positions divided by
    `rope_factor`, in place of the model's own rope scaling (None: with that). `added_inputs` and
    `added_outputs` are the vectors that the token table and the head have of tokens that it adds,
    where a file `added_file` of its own holds them.

    All tensors of adapters with one `layout` (None: not told) lie in the same places of their
    `content`, and mean the same: when one has been read, the others differ in numbers alone. While
    the content is not read (`AdapterMethod.open`), its tensors have places and no numbers yet.

    Shapes: prompt [n, E], added_inputs, added_outputs [m, E]
    """

    changes: Mapping[str, ModuleChange]
    prompt: torch.Tensor | None = None
    rope_factor: float | None = None
    added_inputs: torch.Tensor | None = None
    added_outputs: torch.Tensor | None = None
    added_file: str = ""
    layout: Hashable = None
    content: AdapterContent | None = None


class AdapterMethod(Plugin):
    """A sort of adapter checkpoint. One object per worker, called from any thread."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "changes_modules": "changes what modules of the model compute",
        "prompt": "puts vectors before a request's prompt",
    }
    peft_types: ClassVar[Sequence[str]] = ()
    """The values of adapter_config.json's `peft_type` that the method reads."""

    @abstractmethod
    def __init__(self, options: Any, model: ModelSpec) -> None:
        """Keep what must be known of the model."""

    @abstractmethod
    def read(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a folder, whose adapter_config.json is `config`.

        Raises: ConfigError that names the file and the key at fault.
        """

    def open(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return what `read` does, of which the content's bytes need not be read yet: its tensors
        have no numbers then. The default: what `read` returns. Raises: ConfigError"""
        return self.read(folder, config)

    def num_prompt_tokens(self, config: Mapping[str, Any]) -> int:
        """Return how many vectors the adapter puts before a prompt. The default: none."""
        return 0
