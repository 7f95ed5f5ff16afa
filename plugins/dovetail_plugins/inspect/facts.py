"""What an inspection finds, as data; `as_json` gives it the keys that `--json` prints.

Sizes are bytes, lengths tokens. None stands where something could not be found out; the warnings
then say why.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1
"""Of the keys: raised when one changes its meaning or goes, not when one comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The shape of the model. `experts_per_token` of `experts` work on a token; 0 without any."""

    architecture: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_tokens: int
    window_tokens: int | None
    experts: int
    experts_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What requests may ask of the model: `tasks`, the usual one first.

    Vectors have `dimensions` (`allowed_dimensions`: or one of these), are pooled by `pooler` and
    have the length 1 if `is_normalized`. `classes` are the names of the classes. `prompts` are
    those that the checkpoint puts before texts, by name.
    """

    tasks: tuple[str, ...]
    pooler: str | None = None
    dimensions: int | None = None
    allowed_dimensions: tuple[int, ...] = ()
    is_normalized: bool = False
    classes: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One plugin that `serve` would choose with the same flags, and why."""

    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One file of weights. `tensors` None: it has no head that tells."""

    name: str
    bytes: int
    tensors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers of one purpose. `stored` and `kept` map a form to the parameters that have it; `kept`
    is how they stay in memory. `activations` likewise: what products on this machine make of them,
    nothing for layers that are not multiplied by any. `is_exact`: no method had to be guessed for
    `kept_bytes`."""

    name: str
    layers: int
    parameters: int
    active_parameters: int
    stored: dict[str, int]
    stored_bytes: int
    kept: dict[str, int]
    kept_bytes: int
    is_exact: bool
    activations: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many requests of one length the free memory holds at a time."""

    context_tokens: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that the model takes on `device`. `tables_bytes` are rotary tables, beside the
    weights.

    `free_bytes` is the device's memory now; `longest_tokens` the longest context that it holds
    beside the weights, at most the checkpoint's. `cache_bytes`, `served_tokens` and `most_requests`
    are what `serve` would take with the same flags. An encoder keeps nothing: no bytes a token, and
    no bound on requests but that of its steps.
    """

    device: str
    weights_bytes: int
    tables_bytes: int
    is_exact: bool
    kv_dtype: str
    kv_bytes_per_token: int
    state_bytes_per_request: int
    free_bytes: int | None
    longest_tokens: int | None
    fits: tuple[Fit, ...]
    cache_bytes: int | None
    served_tokens: int | None
    most_requests: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """How text goes in and out. `end_tokens` end an answer; `generation` are sampling defaults."""

    vocab_size: int
    special_tokens: int
    bos_token: str | None
    end_tokens: tuple[str, ...]
    has_chat_template: bool
    template_chars: int
    knows_tools: bool
    tool_parser: str | None
    reasoning_parser: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """All of it. `would_start` says whether `serve` would get as far as reading weights; `purpose`
    is None where it would not."""

    path: str
    would_start: bool
    model: ModelFacts
    purpose: Purpose | None
    parameters: int
    active_parameters: int
    files: tuple[WeightFile, ...]
    groups: tuple[Group, ...]
    memory: Memory | None
    quantization: str | None
    plugins: tuple[Chosen, ...]
    text: TextFacts | None
    generation: dict[str, Any]
    warnings: tuple[str, ...]


def as_json(found: Inspected) -> dict[str, Any]:
    """Return the facts as JSON's own types."""
    return {"version": VERSION, **asdict(found)}
