"""StopCondition: ends an answer because of its tokens, beside end tokens, stop strings and lengths.

A condition sees the ids of generated tokens only, so an answer ends at the same token in any batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.plugin import Plugin

Watch = Callable[[int], bool]
"""Takes each token of one answer, in order; returns whether the answer may end there."""


class StopCondition(Plugin):
    """One object per engine, one watch per answer. The answer's last token is part of it.

    `finish_reason` and `stop_reason` are what clients see. `claims` maps each request field that it
    reads to one sentence about the field; it finds them in `params.extra_args`, as logits
    processors do. A request with `min_tokens` goes on until it has them.
    """

    interface_version: ClassVar[int] = 1
    finish_reason: ClassVar[str]
    stop_reason: ClassVar[str]
    claims: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def verify(cls, params: SamplingParams) -> None:
        """Check the request's fields. Raises: RequestError. Runs in the API process, for every
        request, before it is queued."""

    @abstractmethod
    def watch(self, params: SamplingParams) -> Watch | None:
        """Return what follows one answer; None if its request does not use the condition."""
