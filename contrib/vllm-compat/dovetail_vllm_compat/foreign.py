"""What dovetail's parsers over vLLM's have in common: making one, its request, its methods.

A method that raises is not an error of the request: it is logged, and the other way to read the
answer is taken.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_vllm_compat.bases import Growth
from dovetail_vllm_compat.protocol import ChatCompletionRequest
from dovetail_vllm_compat.tokenizer import ModelTokenizer

logger = logging.getLogger("dovetail.plugin_files")

FAULTS = (Exception, SystemExit)
"""What code of a plugin file may raise without ending more than its own work."""


@dataclass(slots=True, kw_only=True)
class Foreign:
    """A class of a plugin file with the model's tokenizer. `name` is what log lines call it."""

    parser: type
    tokenizer: ModelTokenizer
    name: str
    said: set[str]

    def make(self, **offered: Any) -> Any:
        """Return a new object of the class; of what is offered, it is given what it takes."""
        parameters = inspect.signature(self.parser).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        given = {key: value for key, value in offered.items() if takes_all or key in names}
        return self.parser(self.tokenizer, **given)

    def check(self, **offered: Any) -> Any:
        """Return a new object, to see that one can be made. Raises: ConfigError"""
        try:
            return self.make(**offered)
        except FAULTS as error:
            raise ConfigError(
                f"it cannot be used with this model: {described(error)}",
                where=self.name,
                fix="look at what its __init__ asks of the tokenizer.",
            ) from error

    def make_for_request(self, **offered: Any) -> Any:
        """Return a new object for what a request offers. Raises: RequestError"""
        try:
            return self.make(**offered)
        except FAULTS as error:
            self.report("__init__", error)
            raise RequestError(
                f"the {self.name} cannot be used with this request: {described(error)}",
                where="/".join(offered),
                code="parser_failed",
            ) from error

    def report(self, what: str, error: BaseException) -> None:
        """Log that a method raised: the first time with the traceback. Mutates: self"""
        text = f"{what} raised {described(error)}"
        has_stack = text not in self.said
        self.said.add(text)
        logger.warning("%s: %s", self.name, text, exc_info=error if has_stack else None)

    def warn_once(self, text: str) -> None:
        """Log a warning that is the same for every answer. Mutates: self"""
        if text not in self.said:
            self.said.add(text)
            logger.warning("%s: %s", self.name, text)


class ForeignAdapter:
    """The base of dovetail's parsers over vLLM's. `for_class` makes one for each class of theirs.

    `family` is what log lines call the class.
    """

    family: ClassVar[str]
    foreign_class: ClassVar[type]
    options: Any
    _foreign: Foreign | None = None

    @classmethod
    def for_class(cls, parser: type, name: str, module: str) -> type[Self]:
        """Return the parser over a class of vLLM's kind, named as its module knows it."""
        info = Info(summary=f"{parser.__name__}, written for vLLM")
        fields = {"foreign_class": parser, "info": info, "__module__": module}
        return type(name, (cls,), fields | {"__qualname__": name, "__doc__": parser.__doc__})

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax: that cannot be known."""
        return [] if query is None else ["it is chosen by its name alone"]

    def bound(self, tokenizer: Tokenizer) -> Self:
        """Return the parser for this tokenizer. Raises: ConfigError where its class refuses it."""
        bound = copy(self)
        bound._foreign = Foreign(
            parser=self.foreign_class,
            tokenizer=ModelTokenizer(tokenizer),
            name=f"{self.family} {self.foreign_class.__name__}",
            said=set(),
        )
        bound._check()
        return bound

    def _check(self) -> None:
        """Make an object of the class, to see that one can be made. Mutates: self. Raises:
        ConfigError"""
        raise NotImplementedError(f"{type(self).__name__}._check")

    @property
    def foreign(self) -> Foreign:
        """The class with the model's tokenizer."""
        assert self._foreign is not None, "the parser is bound to a tokenizer first"
        return self._foreign


def described(error: BaseException) -> str:
    """Return an exception as a part of a sentence."""
    return f"{type(error).__name__}: {error}"


def method_of(parser: Any, *names: str) -> Callable[..., Any]:
    """Return the method that has one of these names lowest down: files written for different
    versions override different ones."""
    for cls in type(parser).__mro__:
        for name in names:
            if name in vars(cls):
                found: Callable[..., Any] = getattr(parser, name)
                return found
    raise NotImplementedError(" or ".join(names))


def request_of(values: Mapping[str, Any]) -> ChatCompletionRequest:
    """Return a request as vLLM's parsers see it; fields that are null have their default."""
    return ChatCompletionRequest.model_validate({k: v for k, v in values.items() if v is not None})


def adjusted(foreign: Foreign, parser: Any, request: ChatCompletionRequest) -> bool:
    """Let the parser change the request; return whether it wants to see special tokens.

    Mutates: request
    """
    before = request.model_dump()
    try:
        changed = method_of(parser, "adjust_request")(request)
    except FAULTS as error:
        foreign.report("adjust_request", error)
        return False
    after = (changed if isinstance(changed, ChatCompletionRequest) else request).model_dump()
    others = [k for k, v in after.items() if v != before.get(k) and k != "skip_special_tokens"]
    if others:
        foreign.warn_once(f"what adjust_request does to {', '.join(others)} has no effect here")
    return after["skip_special_tokens"] is False


def rest_of(told: str, whole: str, *, may_be_less: bool = False) -> str | None:
    """Return the part of a whole text that was not passed on yet, or None where they contradict
    each other.

    Blanks at either end do not count: one method strips them, the other does not. `may_be_less`:
    the whole text may leave out the end of what was passed on.
    """
    if whole.startswith(told):
        return whole[len(told) :]
    said = told.strip()
    if said == whole.strip() or (may_be_less and said.startswith(whole.strip())):
        return ""
    said = told.lstrip()
    return whole.lstrip()[len(said) :] if whole.lstrip().startswith(said) else None


class Grown:
    """The text and tokens of an answer so far, and what every method is given of them."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []

    def grow(self, text: str, token_ids: Sequence[int]) -> Growth:
        """Take what is new; return what streaming methods are given. Mutates: self"""
        before, ids_before = self.text, self.ids
        self.text = before + text
        self.ids = [*ids_before, *token_ids]
        return Growth(before, self.text, text, ids_before, list(self.ids), list(token_ids))
