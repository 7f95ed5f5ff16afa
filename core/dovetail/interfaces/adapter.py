"""Adapter: small weights added to a model's own, which a request selects by name.

An AdapterMethod reads one type of checkpoint (LoRA and variants, prompt vectors) and returns what
it changes, module by module. Core shards that for a rank, stores it in numbered slots next to the
layers and applies it to the rows that use it. Shape letters: I input, O output features, R rank, n
tokens, E hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChange:
    """What an adapter does to one module of the checkpoint: y = x W^T + b becomes

        y = output_scale (g (x' W^T + scale (x' down^T) up^T) + b) + shift,   x' = input_scale x

    where g = magnitude / the norms of the rows of (W + scale up down), as in DoRA. Fields that are
    None are left out. `weight` replaces W, and `bias` replaces b. For a token table the inputs are
    the tokens: I is the vocabulary.

    For tables over the vocabulary, W is [V, E]. Extra rows of `weight` belong to tokens that the
    adapter adds, with ids from V on. `rows` replace the rows `row_ids`, including added ones. If
    `is_tied`, a change of a token table also applies to a head that shares it, unless the adapter
    changes the head itself.

    Shapes: down [R, I], up [O, R], magnitude, output_scale, shift, bias [O], input_scale [I],
    weight [O or more, I], row_ids [m] int64, rows [m, E]
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
        """Return whether the change consists of a low-rank product only, or nothing."""
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
    """The bytes of an adapter's file. `memory` is allocated from the start, so that tensors can be
    views of it; the bytes are valid once they are read. Shapes: memory [bytes] uint8"""

    @property
    def memory(self) -> torch.Tensor: ...
    @property
    def is_read(self) -> bool: ...

    def read(self) -> None:
        """Read all bytes into memory, unless already read. Raises: ConfigError. Mutates: the
        memory"""

    def read_piece(self, start: int, piece: memoryview) -> None:
        """Read the file's bytes from `start` on into the caller's memory. Raises: ConfigError.
        Mutates: piece"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWeights:
    """An adapter as read. `changes` are by the module's dotted path in the checkpoint's naming;
    `prompt` holds vectors to put before the first token. `rope_factor` is the position divisor it
    was trained with, replacing the model's own rope scaling (None: keep that). `added_inputs` and
    `added_outputs` are the vectors of added tokens in the token table and the head, if they come
    from a separate file `added_file`.

    Adapters with the same `layout` (None: unknown) have all tensors at the same places in their
    `content`, with the same meaning: once one has been read, the others differ only in numbers.
    Until the content is read (`AdapterMethod.open`), its tensors have addresses but no values.

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
    """A type of adapter checkpoint. One object per worker, called from any thread."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "changes_modules": "changes what modules of the model compute",
        "prompt": "puts vectors before a request's prompt",
    }
    peft_types: ClassVar[Sequence[str]] = ()
    """The values of `peft_type` in adapter_config.json that the method reads."""

    @abstractmethod
    def __init__(self, options: Any, model: ModelSpec) -> None:
        """Store what is needed of the model."""

    @abstractmethod
    def read(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a folder, whose adapter_config.json is `config`.

        Raises: ConfigError that names the file and the key at fault.
        """

    def open(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the same as `read`, but the content's bytes may be read later: its tensors have no
        values until then. The default calls `read`. Raises: ConfigError"""
        return self.read(folder, config)

    def num_prompt_tokens(self, config: Mapping[str, Any]) -> int:
        """Return how many vectors the adapter puts before a prompt. The default: none."""
        return 0
