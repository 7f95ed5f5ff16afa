"""LogitsProcessor: changes the logits of the rows that request it.

Built-in bans and biases are processors like any other. A processor that no row of a step uses is
not called. Shape letters: S rows that draw a token in this step, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.structured_output import Vocabulary
from dovetail.interfaces.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTokens:
    """The tokens of one row that a processor may see. `output_ids` is a live view that grows. A
    request that was preempted comes again with the same `request_id`."""

    row: int
    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    seed: int = 0
    request_id: str = ""


PIPELINE = (
    *("allow", "ban", "bias", "penalties", "before_temperature", "temperature", "filter", "min_p"),
    *("before_top_k", "top_k", "before_top_p", "top_p", "before_draw", "draw"),
)
"""The order of sampling: the sampler's own steps, and between them the stages of processors."""
OWN_STEPS = ("penalties", "temperature", "min_p", "top_k", "top_p", "draw")
STAGES = tuple(name for name in PIPELINE if name not in OWN_STEPS)

ANY_FIELD = "*"
"""Claimed by a processor that does not declare which fields of `vllm_xargs` it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext:
    """What a processor can know about the run.

    `tokenizer` loads the model's tokenizer from `tokenizer_path`, which takes time and memory; it
    raises ConfigError if the engine runs without one. `vocabulary` returns the tokens as bytes,
    which structured output shares; it raises RequestError if the engine runs without that.
    """

    model: ModelSpec
    device: torch.device
    max_rows: int
    max_model_tokens: int
    tokenizer_path: str
    tokenizer: Callable[[], Tokenizer]
    vocabulary: Callable[[], Vocabulary]


class LogitsProcessor(Plugin):
    """One object per runner. A row's state lives from add_row to remove_row.

    `stage`, one of STAGES, is its place in PIPELINE; `set_up` may set it. Within a stage a lower
    `rank` comes first, then the name that sorts first. "allow" is for allowed
    ids, "ban" for bad words, "bias" for anything that adds to logits. From the temperature on, only
    rows that are not greedy take part; a "filter" may remove tokens, but never the most likely one,
    and a later stage any, but not all that are left. `field` names the one field of SamplingParams
    that the processor implements exactly as documented, if there is one. A
    sampler that knows the field may then do it instead ("min_p"). `claims` maps each request field
    that it reads to one sentence about the field. Clients send such a field in the body or in
    `vllm_xargs`, programs in SamplingParams.extra_args; either way the processor finds it in
    `params.extra_args`. ANY_FIELD claims all of `vllm_xargs`.
    """

    interface_version: ClassVar[int] = 1
    stage: str = "bias"
    rank: ClassVar[int] = 0
    field: ClassVar[str] = ""
    claims: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Any, vocab_size: int) -> None:
        self.options = options
        self.vocab_size = vocab_size

    def set_up(self, context: ProcessorContext) -> None:
        """Receive the run's context. Called once, in the engine, before the first row. The default
        does nothing."""

    @classmethod
    @abstractmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether a request with these params uses this processor."""

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Check the request's use of this processor. Raises: RequestError. Runs in the API process
        before the request is queued."""

    @classmethod
    def prepared(cls, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params of a request that uses this processor, completed with what needs the
        tokenizer: for example texts as token ids, in `extra_args`. The default changes nothing.

        Runs in the API process after `verify`, with the tokenizer of the request's adapter if it
        has its own. Raises: RequestError
        """
        return params

    @abstractmethod
    def add_row(self, tokens: RowTokens) -> None:
        """Add a row that uses this processor."""

    @abstractmethod
    def remove_row(self, row: int) -> None:
        """Remove a row; unknown rows are ignored."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Change logits in place. `rows` pairs (index into logits, row number), only for added
        rows.

        Shapes: logits [S, V] float32 Mutates: logits, only at the given indices
        """
