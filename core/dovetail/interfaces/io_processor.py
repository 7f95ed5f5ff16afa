"""IOProcessor: converts a request's custom data to prompts, and their pooled outputs to its answer.

For pooling models: a client sends `data` to /pooling (or {"data": ...} to LLM.encode), in any form
that the processor reads, and gets what it makes of the pooled numbers. Runs in the API process, in
a thread; it can change neither other requests nor the engine. Imports numpy for type checking only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, slots=True, kw_only=True)
class IOFacts:
    """Facts about the model for a processor: its path, its tasks, and the maximum number of prompt
    tokens."""

    model_path: str
    tasks: Sequence[str]
    max_model_tokens: int


class IOProcessor(Plugin):
    """One object per API process, called from several threads concurrently; stores no request.

    `sample` is data, as JSON, that a processor with default options accepts. `task` is the model's
    task, one of PoolingParams' ("": the model's default).
    """

    interface_version: ClassVar[int] = 1
    sample: ClassVar[str] = ""
    task: ClassVar[str] = ""

    def __init__(self, options: Any, facts: IOFacts) -> None:
        """Store the options. Raises: ConfigError"""
        self.options = options
        self.facts = facts

    @abstractmethod
    def prompts(self, data: Any) -> Sequence[str | Sequence[int]]:
        """Return the prompts of a request, texts or token ids; at least one. Does not change
        `data`. Raises: RequestError for data that it does not accept"""

    @abstractmethod
    def answer(self, data: Any, outputs: Sequence[numpy.ndarray[Any, Any]]) -> Any:
        """Return the answer as JSON values. `outputs` are the model's outputs for the prompts, in
        order.
        Raises: RequestError

        Shapes: outputs each [E], or [m, E] for tasks of single tokens
        """
