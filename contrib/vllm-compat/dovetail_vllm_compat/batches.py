"""The names around logits processors: the classes that they derive from, and changes of a batch."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RequestLogitsProcessor = Callable[..., Any]
"""Of one request: (output ids, logits) or (prompt ids, output ids, logits) -> logits."""


class MoveDirectionality(Enum):
    """Whether a request takes another's place, or two exchange theirs."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    """What changed in the batch since the last step. `added` are (index, params, prompt ids, output
    ids); the list of output ids grows later. `moved` are (from, to, direction)."""

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]]


class LogitsProcessor(ABC):
    """Changes the logits of a whole batch."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a request that uses the processor wrongly."""

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the changed logits, which may be the same tensor."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Return whether the most likely token always stays that."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take what changed in the batch; None for nothing. Called before each `apply`."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Changes the logits of each request on its own, by a function that the subclass makes."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: Any) -> RequestLogitsProcessor | None:
        """Return the function of a request; None where there is nothing to change."""

    def _new_state(
        self, params: Any, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        made = self.new_req_logits_processor(params)
        if made is None:
            return None
        takes_prompt = len(inspect.signature(made).parameters) == 3
        return partial(made, prompt_ids, output_ids) if takes_prompt else partial(made, output_ids)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keep one function for each request that has one."""
        process_dict_updates(self.req_info, batch_update, self._new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Let each function change its own line of the logits."""
        for index, change in self.req_info.items():
            logits[index] = change(logits[index])
        return logits


def process_dict_updates(
    req_entries: dict[int, Any],
    batch_update: BatchUpdate | None,
    new_state: Callable[[Any, list[int] | None, list[int]], Any],
) -> bool:
    """Bring a dict by index up to date; return whether it changed. Mutates: req_entries

    `new_state` makes the entry of a request that was added, or None for one without.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    for index in batch_update.removed:
        req_entries.pop(index, None)
    for index, params, prompt_ids, output_ids in batch_update.added:
        _put(req_entries, index, new_state(params, prompt_ids, output_ids))
    for source, target, direction in batch_update.moved:
        moved, replaced = req_entries.pop(source, None), req_entries.pop(target, None)
        _put(req_entries, target, moved)
        if direction is MoveDirectionality.SWAP:
            _put(req_entries, source, replaced)
    return req_entries != before


def _put(entries: dict[int, Any], index: int, entry: Any) -> None:
    """Set an entry, or take it away where there is none. Mutates: entries"""
    if entry is None:
        entries.pop(index, None)
    else:
        entries[index] = entry
