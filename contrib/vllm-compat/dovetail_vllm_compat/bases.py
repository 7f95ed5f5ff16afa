"""The classes that parsers of plugin files derive from, and the managers they register with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from dovetail_vllm_compat.protocol import (
    ChatCompletionRequest,
    DeltaMessage,
    ExtractedToolCallInformation,
)


class Growth(NamedTuple):
    """The arguments of streaming methods: an answer before and after its newest tokens, and those.

    Plugin files pass and take them by position or by these names.
    """

    previous_text: str
    current_text: str
    delta_text: str
    previous_token_ids: Sequence[int]
    current_token_ids: Sequence[int]
    delta_token_ids: Sequence[int]


class _Parser:
    def __init__(self, tokenizer: Any) -> None:
        self.model_tokenizer = tokenizer

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Return every token's id by its text."""
        found: dict[str, int] = self.model_tokenizer.get_vocab()
        return found

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """Return the request as the parser wants it."""
        return request


class ToolParser(_Parser):
    """Reads calls: whole answers by one method, growing ones by the other."""

    supports_required_and_named = True

    def __init__(self, tokenizer: Any, tools: Sequence[Any] | None = None) -> None:
        super().__init__(tokenizer)
        self.tools = list(tools or ())
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        self.current_tool_id = -1
        self.current_tool_name_sent = False
        self.streamed_args_for_tool: list[str] = []

    def extract_tool_calls(
        self, model_output: str, request: ChatCompletionRequest
    ) -> ExtractedToolCallInformation:
        """Return the calls of a whole answer."""
        raise NotImplementedError(f"{type(self).__name__}.extract_tool_calls")

    def extract_tool_calls_streaming(self, *growth: Any, **named: Any) -> DeltaMessage | None:
        """Return what is new in a growing answer, or None. The arguments are a Growth's and the
        request."""
        raise NotImplementedError(f"{type(self).__name__}.extract_tool_calls_streaming")


class ReasoningParser(_Parser):
    """Divides reasoning from content: whole answers by one method, growing ones by another."""

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer)

    @property
    def reasoning_start_str(self) -> str | None:
        """Return the text that opens the reasoning, if it is one."""
        return None

    @property
    def reasoning_end_str(self) -> str | None:
        """Return the text that ends the reasoning, if it is one."""
        return None

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return whether the reasoning is over within these tokens."""
        raise NotImplementedError(f"{type(self).__name__}.is_reasoning_end")

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Sequence[int]
    ) -> bool:
        """Return whether the reasoning is over now that `delta_ids` have come."""
        return self.is_reasoning_end(input_ids)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return the tokens that are not reasoning."""
        raise NotImplementedError(f"{type(self).__name__}.extract_content_ids")

    def extract_reasoning(
        self, model_output: str, request: ChatCompletionRequest
    ) -> tuple[str | None, str | None]:
        """Return (reasoning, content) of a whole answer."""
        raise NotImplementedError(f"{type(self).__name__}.extract_reasoning")

    def extract_reasoning_streaming(self, *growth: Any, **named: Any) -> DeltaMessage | None:
        """Return what is new in a growing answer, or None. The arguments are a Growth's."""
        raise NotImplementedError(f"{type(self).__name__}.extract_reasoning_streaming")

    def prepare_structured_tag(self, original_tag: str | None, tool_server: Any) -> str | None:
        """Return the structural tag of an answer; nothing here asks for it."""
        return original_tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A registration: a class, or where one is to be found."""

    kind: str
    name: str
    parser: type | None = None
    module: str = ""
    attribute: str = ""


offers: list[Offer] = []
"""What the file that runs now has registered; the importer takes them out."""


class _Manager:
    kind: ClassVar[str]
    parsers: ClassVar[dict[str, type]]
    lazy_parsers: ClassVar[dict[str, tuple[str, str]]]

    @classmethod
    def register_module(
        cls,
        name: str | Sequence[str] | None = None,
        force: bool = True,
        module: type | None = None,
    ) -> Any:
        """Register a class under one name or several; without a class, return a decorator."""
        if module is not None:
            return cls._add(name, force, module)
        decorator: Callable[[type], type] = lambda parser: cls._add(name, force, parser)  # noqa: E731
        return decorator

    @classmethod
    def _add(cls, name: str | Sequence[str] | None, force: bool, parser: type) -> type:
        names = [parser.__name__] if name is None else [name] if isinstance(name, str) else name
        for one in names:
            if not force and one in cls.parsers:
                raise KeyError(f"{one} is registered already, by {cls.parsers[one].__module__}")
            cls.parsers[one] = parser
            offers.append(Offer(kind=cls.kind, name=one, parser=parser))
        return parser

    @classmethod
    def register_lazy_module(cls, name: str, module_path: str, class_name: str) -> None:
        """Register a class by the module it stands in."""
        cls.lazy_parsers[name] = (module_path, class_name)
        offers.append(Offer(kind=cls.kind, name=name, module=module_path, attribute=class_name))

    @classmethod
    def list_registered(cls) -> list[str]:
        """Return the names that plugin files registered."""
        return sorted({*cls.parsers, *cls.lazy_parsers})

    @classmethod
    def _get(cls, name: str) -> type:
        if name not in cls.parsers:
            raise KeyError(f'no plugin file registered a {cls.kind.replace("_", " ")} "{name}"')
        return cls.parsers[name]


class ToolParserManager(_Manager):
    """Where tool parsers are registered."""

    kind = "tool_parser"
    tool_parsers: ClassVar[dict[str, type]] = {}
    parsers = tool_parsers
    lazy_parsers = {}

    @classmethod
    def get_tool_parser(cls, name: str) -> type:
        """Return a class that a plugin file registered. Raises: KeyError"""
        return cls._get(name)


class ReasoningParserManager(_Manager):
    """Where reasoning parsers are registered."""

    kind = "reasoning_parser"
    reasoning_parsers: ClassVar[dict[str, type]] = {}
    parsers = reasoning_parsers
    lazy_parsers = {}

    @classmethod
    def get_reasoning_parser(cls, name: str) -> type:
        """Return a class that a plugin file registered. Raises: KeyError"""
        return cls._get(name)
