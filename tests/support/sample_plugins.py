"""Plugins for the registry's tests: right ones, and one for each way to be wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.interfaces.plugin import Info, Value
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy
from dovetail.interfaces.tokenizer import Tokenizer

SIXTEEN = Value(summary="sixteen", value=16)
MISSING_VALUE = Value(summary="needs a package", value=1, requires=("no_such_package",))


class Good(SchedulingPolicy):
    """Everything in order."""

    info = Info(summary="shortest first")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """Options of many types."""

        weight: float = field(default=1.0, metadata={"help": "weight", "ge": 0, "le": 10})
        limit: int | None = field(default=None, metadata={"help": "limit", "unit": "tokens"})
        is_strict: bool = field(default=False, metadata={"help": "strictness"})
        mode: Literal["up", "down"] = field(default="up", metadata={"help": "direction"})
        names: tuple[str, ...] = field(default=(), metadata={"help": "names"})
        table: dict[str, int] = field(default_factory=dict, metadata={"help": "table"})

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the prompt's length."""
        return (float(request.num_prompt_tokens),)


class Better(Good):
    """Ranks above Good."""

    info = Info(summary="ranks higher")
    auto_rank = 10


class Picky(Good):
    """Fits only one question."""

    info = Info(summary="fits little")
    auto_rank = 99

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return a reason unless the query is "picky"."""
        return [] if query in (None, "picky") else [f"does not like {query}"]


class Unavailable(Good):
    """Needs a package nobody has."""

    info = Info(summary="needs a package", requires=("no_such_package",), extra="gpu")


class NotAPlugin:
    """Derives from nothing."""


class Abstract(SchedulingPolicy):
    """Forgets its method."""

    info = Info(summary="forgets key")


class OldVersion(Good):
    """Written for another interface."""

    interface_version = 0


class WrongName(SchedulingPolicy):
    """Calls its parameter otherwise."""

    info = Info(summary="another parameter name")

    def key(self, candidate: RequestView) -> tuple[float, ...]:
        """Return a key."""
        return (0.0,)


class Greedy(Good):
    """Takes anything."""

    def key(self, *args: Any) -> tuple[float, ...]:  # type: ignore[override]
        """Return a key."""
        return (0.0,)


class ExtraParameter(Good):
    """Demands more than it is given."""

    def key(self, request: RequestView, factor: float) -> tuple[float, ...]:  # type: ignore[override]
        """Return a key."""
        return (factor,)


class HiddenArguments(Good):
    """Has a public method of its own that hides what it takes."""

    def tune(self, **settings: Any) -> None:
        """Change something."""


class NoInfo(SchedulingPolicy):
    """Says nothing of itself."""

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return a key."""
        return (0.0,)


class ThawedOptions(Good):
    """Its options can be changed."""

    @dataclass
    class Options:
        """Not frozen."""

        weight: float = 1.0


class NeedyOptions(Good):
    """Its options have no default."""

    @dataclass(frozen=True)
    class Options:
        """One field must be given."""

        weight: float


class UnknownWord(Good):
    """Claims a capability nobody defined."""

    capabilities = frozenset({"flies"})


class ReorderedTokenizer(Tokenizer):
    """Takes keyword-only parameters by position, and lacks one."""

    info = Info(summary="loses a parameter")

    def __init__(self, options: Any, path: str) -> None:
        self.path = path

    def encode(self, text: str) -> list[int]:  # type: ignore[override]
        """Return nothing."""
        return []

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        """Return nothing."""
        return ""

    def stream(
        self,
        prompt_ids: Any,
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> Any:
        """Return nothing."""

    def tokens(self, token_ids: Any) -> list[str]:
        """Return nothing."""
        return []

    def facts(self) -> Any:
        """Return nothing."""


class Raises(Good):
    """Fails when asked whether it is available."""

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Raise."""
        raise RuntimeError("no driver")
