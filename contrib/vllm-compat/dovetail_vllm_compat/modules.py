"""The modules under which plugin files know vLLM's names, in each of the layouts it has had.

They exist for one file at a time: its own imports find them whenever they run, those of modules
that it imports find them while it loads. An installed vllm is neither used nor hidden afterwards.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from dovetail_vllm_compat import bases, batches, helpers, protocol, settings, thinking, tokenizer

ROOT = "vllm"
VERSION = "0.15.0"
"""What files see as `vllm.__version__`, which some compare with the version they need."""
PACKAGE = "dovetail-vllm-compat"


class MissingName(ImportError):
    """A name of vLLM that this package does not have."""


class MissingModule(MissingName, ModuleNotFoundError):
    """A module of vLLM that this package does not have."""


def _public(module: ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }


OPENAI = "vllm.entrypoints.openai"
TOKENIZERS: dict[str, Any] = {
    "AnyTokenizer": Any,
    "TokenizerLike": Any,
    "MistralTokenizer": tokenizer.MistralTokenizer,
    **dict(settings.tokenizer_names()),
}
CONSTRAINTS = {
    "SamplingParams": settings.SamplingParams,
    "StructuredOutputsParams": protocol.StructuredOutputsParams,
    "GuidedDecodingParams": protocol.StructuredOutputsParams,
}


def _tool_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the modules around tool parsers: two layouts of the same."""
    tools = {
        "ToolParser": bases.ToolParser,
        "ToolParserManager": bases.ToolParserManager,
        "Tool": protocol.ChatCompletionToolsParam,
    }
    names = (
        "consume_space",
        "extract_intermediate_diff",
        "find_all_indices",
        "find_common_prefix",
        "find_common_suffix",
        "find_tool_properties",
        "is_complete_json",
        "partial_json_loads",
        "partial_tag_overlap",
    )
    functions = {name: getattr(helpers, name) for name in names}
    for layout in (f"{OPENAI}.tool_parsers", "vllm.tool_parsers"):
        yield layout, tools
        yield f"{layout}.abstract_tool_parser", tools | _public(protocol)
        yield f"{layout}.utils", functions | {"_extract_tool_info": helpers.extract_tool_info}


def _reasoning_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the modules around reasoning parsers."""
    own = {
        "ReasoningParser": bases.ReasoningParser,
        "ReasoningParserManager": bases.ReasoningParserManager,
    }
    classes = _public(thinking)
    for layout in ("vllm.reasoning", f"{OPENAI}.reasoning_parsers"):
        yield layout, own | classes
        yield f"{layout}.abs_reasoning_parsers", own
    for name in ("basic_parsers", "identity_reasoning_parser"):
        yield f"vllm.reasoning.{name}", classes
    for model in ("deepseek_r1", "qwen3"):
        yield f"vllm.reasoning.{model}_reasoning_parser", classes


def _sampling_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the modules around logits processors of the V1 interface."""
    names = _public(batches) | {"RequestLogitsProcessor": batches.RequestLogitsProcessor}
    yield "vllm.v1.sample.logits_processor", names
    for part in ("interface", "builtin", "state"):
        yield f"vllm.v1.sample.logits_processor.{part}", names
    yield "vllm.logits_process", {"LogitsProcessor": batches.RequestLogitsProcessor}
    yield "vllm.config", _public(settings)


def _other_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the modules of requests, tokenizers and small things."""
    lists = {"is_list_of": helpers.is_list_of}
    ids = {"make_tool_call_id": helpers.make_tool_call_id}
    yield ROOT, {"__version__": VERSION, "SamplingParams": settings.SamplingParams}
    yield "vllm.version", {"__version__": VERSION}
    yield "vllm.envs", {"__getattr__": helpers.environment}
    yield "vllm.logger", {"init_logger": helpers.init_logger}
    yield "vllm.sampling_params", CONSTRAINTS
    yield "vllm.utils", {"random_uuid": helpers.random_uuid} | lists
    yield "vllm.utils.collection_utils", lists
    yield "vllm.utils.mistral", {"is_mistral_tokenizer": helpers.is_mistral_tokenizer}
    yield "vllm.entrypoints.chat_utils", ids | {"random_tool_call_id": helpers.make_tool_call_id}
    for part in ("protocol", "chat_completion.protocol", "engine.protocol", "responses.protocol"):
        yield f"{OPENAI}.{part}", _public(protocol)
    utils = "vllm.transformers_utils"
    for name in (f"{utils}.tokenizer", f"{utils}.tokenizers", f"{utils}.tokenizers.mistral"):
        yield name, TOKENIZERS
    yield "vllm.tokenizers", TOKENIZERS
    yield "vllm.tokenizers.mistral", TOKENIZERS


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return the names in each module of vLLM."""
    return dict([*_tool_modules(), *_reasoning_modules(), *_sampling_modules(), *_other_modules()])


class _Module(ModuleType):
    """A module of the table. A name that it lacks says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        own = vars(self).get("__getattr__")
        if own is not None:
            return own(name)
        raise AttributeError(_lack(f"{self.__name__}.{name}"))


def _lack(name: str) -> str:
    return f'{PACKAGE} does not have "{name}"'


@cache
def _modules() -> Mapping[str, ModuleType]:
    """Return every module by its name, parents included."""
    modules: dict[str, ModuleType] = {}
    for name, contents in table().items():
        parts = name.split(".")
        for size in range(1, len(parts) + 1):
            whole = ".".join(parts[:size])
            if whole not in modules:
                modules[whole] = _Module(whole, f"Names of {whole}, by {PACKAGE}.")
                modules[whole].__path__ = []
                if size > 1:
                    setattr(modules[".".join(parts[: size - 1])], parts[size - 1], modules[whole])
        modules[name].__dict__.update(contents)
    return modules


def module_named(name: str) -> ModuleType:
    """Return a module of vLLM. Raises: MissingModule"""
    if name not in _modules():
        raise MissingModule(_lack(name), name=name)
    return _modules()[name]


def is_vllm(name: str) -> bool:
    """Return whether a module's name is vLLM's or that of a part of it."""
    return name.partition(".")[0] == ROOT


def give_imports(module: ModuleType) -> None:
    """Let the code of a module import vLLM's names, now and later. Mutates: module"""
    module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _import}


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as Python does, but for vLLM's names. Raises: MissingName"""
    if level or not is_vllm(name):
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    module = module_named(name)
    for wanted in fromlist or ():
        if wanted != "*" and not hasattr(module, wanted):
            raise MissingName(_lack(f"{name}.{wanted}"), name=f"{name}.{wanted}")
    return module if fromlist else module_named(ROOT)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the table for whatever imports them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where a module of vLLM comes from. Raises: MissingModule"""
        if not is_vllm(name):
            return None
        module_named(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module."""
        return module_named(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is whole."""


@contextmanager
def found_by_all() -> Iterator[None]:
    """Let every import find vLLM's names for the duration; what was imported before comes back."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if is_vllm(name)}
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if is_vllm(name)]:
            del sys.modules[name]
        sys.modules.update(before)
