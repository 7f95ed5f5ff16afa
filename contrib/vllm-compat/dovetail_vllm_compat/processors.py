"""VllmLogitsProcessor: dovetail's logits processor over a class of vLLM's V1 interface.

Such a class identifies rows by their index in a batch, receives every change of the batch, and
processes all rows in one call. A row joins its batch when it first draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import ANY_FIELD, LogitsProcessor, ProcessorContext, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_vllm_compat import batches, settings

if TYPE_CHECKING:
    import torch


class ForeignBatch:
    """An object of a class of vLLM's, and the rows at the indices of its batch."""

    def __init__(self, processor: batches.LogitsProcessor) -> None:
        self._processor = processor
        self._places: list[int | None] = []
        self._outputs: dict[int, list[int]] = {}
        self._removed: list[int] = []

    def remove(self, row: int) -> None:
        """Empty a row's place; rows without one are ignored. Mutates: self"""
        if row in self._places:
            self._removed.append(self._places.index(row))
            self._places[self._removed[-1]] = None
            del self._outputs[row]

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, RowTokens]]) -> None:
        """Change the logits of rows; the others of the batch draw nothing in this step.

        Mutates: self; logits, at the indices of the rows
        """
        update = self._update([tokens for _, tokens in rows])
        for _, tokens in rows:
            _follow(self._outputs[tokens.row], tokens.output_ids)
        self._processor.update_state(update)
        places = {row: place for place, row in enumerate(self._places)}
        own = [places[tokens.row] for _, tokens in rows]
        indices = [index for index, _ in rows]
        if indices == own == list(range(len(logits))) and len(own) == len(self._places):
            changed = self._processor.apply(logits)
            if changed is not logits:
                logits.copy_(changed)
            return
        batch = logits.new_zeros(len(self._places), logits.shape[1])
        batch[own] = logits[indices]
        logits[indices] = self._processor.apply(batch)[own]

    def _update(self, rows: Sequence[RowTokens]) -> batches.BatchUpdate | None:
        """Give new rows a place and close gaps; return what changed. Mutates: self"""
        added = [self._add(tokens) for tokens in rows if tokens.row not in self._outputs]
        moved = []
        for gap in sorted(self._removed):
            while self._places and self._places[-1] is None:
                self._places.pop()
            if gap < len(self._places):
                self._places[gap] = self._places.pop()
                moved.append((len(self._places), gap, batches.MoveDirectionality.UNIDIRECTIONAL))
        removed, self._removed = self._removed, []
        if not (added or removed):
            return None
        return batches.BatchUpdate(len(self._places), removed, added, moved)

    def _add(self, tokens: RowTokens) -> tuple[int, Any, list[int] | None, list[int]]:
        """Give a row a place that is free, or one at the end. Mutates: self"""
        index = self._removed.pop(0) if self._removed else len(self._places)
        self._places[index : index + 1] = [tokens.row]
        output = self._outputs[tokens.row] = list(tokens.output_ids)
        params = settings.SamplingParams.of(tokens.params)
        return index, params, list(tokens.prompt_ids) or None, output


def _follow(known: list[int], output_ids: Sequence[int]) -> None:
    """Bring a list up to date with a row's tokens. Mutates: known"""
    del known[len(output_ids) :]
    known += output_ids[len(known) :]


class VllmLogitsProcessor(LogitsProcessor):
    """An adapter: dovetail's interface in front of a logits processor written for vLLM."""

    info = Info(summary="a logits processor written for vLLM")
    claims = {ANY_FIELD: "fields of vllm_xargs that a class written for vLLM reads"}
    expected_failures = {
        "plain_requests_are_left_alone": "a class written for vLLM looks at every request"
    }
    foreign_class: ClassVar[type[batches.LogitsProcessor]]

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, RowTokens] = {}
        self._context: ProcessorContext | None = None
        self._batch: ForeignBatch | None = None

    @classmethod
    def for_class(cls, foreign: type, name: str, module: str) -> type[Self]:
        """Return the processor over a class of vLLM's, named as its module knows it."""
        summary = f"{foreign.__name__}, written for vLLM"
        fields = {"foreign_class": foreign, "info": Info(summary=summary), "__module__": module}
        about = foreign.__doc__ or f"{summary}."
        return type(name, (cls,), fields | {"__qualname__": name, "__doc__": about})

    def set_up(self, context: ProcessorContext) -> None:
        """Make an object of the class, and ask it where it belongs. Mutates: self"""
        self._context = context
        made = self._made()
        self.stage = "filter" if made.is_argmax_invariant() else "bias"
        self._batch = ForeignBatch(made)

    def _config(self) -> settings.VllmConfig:
        assert self._context is not None, "set_up comes first"
        return settings.VllmConfig(self._context)

    def _made(self) -> batches.LogitsProcessor:
        config = self._config()
        return self.foreign_class(config, config.device_config.device, False)

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return True: which requests such a class changes is known to it alone."""
        return True

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Let the class check the request. Raises: RequestError"""
        try:
            cls.foreign_class.validate_params(settings.SamplingParams.of(params))
        except Exception as error:
            text = f"{cls.foreign_class.__name__} refuses the request: {error}"
            raise RequestError(text, where="vllm_xargs") from error

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row. Mutates: self"""
        self._rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        """Forget a row. Mutates: self"""
        self._rows.pop(row, None)
        if self._batch is not None:
            self._batch.remove(row)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Change the logits by the class.

        A class that raises is in a state that nobody knows: rows are then tried alone, each by an
        object of its own, and those that are left get a new one. Mutates: logits, self
        """
        known = [(index, self._rows[row]) for index, row in rows]
        batch, self._batch = self._batch, None
        is_kept = batch is not None or len(rows) > 1 or len(self._rows) == 1
        batch = batch or ForeignBatch(self._made())
        batch.apply(logits, known)
        self._batch = batch if is_kept else None
