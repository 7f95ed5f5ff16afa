"""IOProcessor: makes the prompts of a request of other data, and its answer of their vectors.

For models that pool: a client sends `data` to /pooling (or {"data": ...} to LLM.encode), of
whatever form the processor reads, and gets what it makes of the pooled numbers. Runs in the API
process, in a thread; it can neither change another request nor the engine. Imports numpy for type
checking only.
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
    """What a processor may know of the model: its path, what it can do, the most tokens of a
    prompt."""

    model_path: str
    tasks: Sequence[str]
    max_model_tokens: int


class IOProcessor(Plugin):
    """One object per API process, called from several threads at once; holds no request.

    `sample` is data, as JSON, that a processor with its default options takes. `task` is what is
    asked of the model, one of PoolingParams' ("": its usual one).
    """

    interface_version: ClassVar[int] = 1
    sample: ClassVar[str] = ""
    task: ClassVar[str] = ""

    def __init__(self, options: Any, facts: IOFacts) -> None:
        """Keep the options. Raises: ConfigError"""
        self.options = options
        self.facts = facts

    @abstractmethod
    def prompts(self, data: Any) -> Sequence[str | Sequence[int]]:
        """Return the prompts of a request, texts or token ids; at least one. Leaves `data` as it
        is. Raises: RequestError for data that it does not take"""

    @abstractmethod
    def answer(self, data: Any, outputs: Sequence[numpy.ndarray[Any, Any]]) -> Any:
        """Return the answer, which JSON can hold. `outputs` are what the model made of the prompts,
        in their order. Raises: RequestError

        Shapes: outputs each [E], or [m, E] for tasks of single tokens
        """
