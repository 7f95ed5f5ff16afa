"""The results of an inspection as data; `as_json` returns them with the keys of `--json`.

Sizes are bytes, lengths tokens. None means unknown; the warnings then say why.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail_plugins.packed_weights.bounds import DiskRun

VERSION = 1
"""The version of the keys: raised when one is removed or changes its meaning, not when one is
added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The shape of the model. `experts_per_token` of its `experts` process a token; 0 without
    experts."""

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
    """What requests may ask of the model: `tasks`, the default one first.

    Vectors have `dimensions` (or one of `allowed_dimensions`), are pooled by `pooler`, and are
    scaled to length 1 if `is_normalized`. `classes` are the names of the classes. `prompts` are the
    names of the instructions that the checkpoint puts before texts.
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
    """One file of weights. `tensors` None: it has no readable header."""

    name: str
    bytes: int
    tensors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What a GGUF file says of itself: the label of its quantization ("Q4_K_M"), and the text of
    the importance matrix that it was quantized with. `lacks`: settings that it should have, and
    what is taken in their place."""

    name: str | None
    license: str | None
    mixture: str | None
    importances: str | None
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers with the same purpose. `stored` and `kept` map a format to its number of parameters,
    on disk and in memory. `activations` does so for the activation type in products on this
    machine; empty for layers without products. `is_exact`: `kept_bytes` contains no guesses."""

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
    """How many concurrent requests of one length fit into the free memory."""

    context_tokens: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that the model takes on `device`.

    `tables_bytes` are rotary tables, in addition to the weights. `free_bytes` is the device's free
    memory now; `longest_tokens` the longest context that fits next to the weights, up to the
    checkpoint's limit. `cache_bytes`, `served_tokens` and `most_requests` are what `serve` would
    use with the same flags. `from_disk`: how a model runs that is larger than memory; lengths are
    unknown then. An encoder has no cache: no bytes per token, and no limit on requests except that
    of its steps.
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
    from_disk: DiskRun | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """Facts about text input and output. `end_tokens` end an answer."""

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
    """The whole result. `would_start`: `serve` would get as far as reading weights. `purpose` is
    None otherwise. `media`: the kinds that requests may carry in addition to text. `file`: what a
    GGUF file says of itself."""

    path: str
    would_start: bool
    model: ModelFacts
    purpose: Purpose | None
    parameters: int
    active_parameters: int
    files: tuple[WeightFile, ...]
    media: tuple[str, ...]
    file: FileFacts | None
    groups: tuple[Group, ...]
    memory: Memory | None
    quantization: str | None
    plugins: tuple[Chosen, ...]
    text: TextFacts | None
    generation: dict[str, Any]
    warnings: tuple[str, ...]


def as_json(found: Inspected) -> dict[str, Any]:
    """Return the facts as JSON types."""
    return {"version": VERSION, **asdict(found)}
