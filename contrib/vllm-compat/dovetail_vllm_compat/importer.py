"""Runs a plugin file that is written for vLLM and registers what it offers with dovetail."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dovetail.errors import BrokenPlugin, ConfigError
from dovetail.interfaces.plugin import Value
from dovetail.registry import register
from dovetail_vllm_compat import bases, batches
from dovetail_vllm_compat.calls import VllmToolParser
from dovetail_vllm_compat.modules import MissingName, found_by_all, give_imports
from dovetail_vllm_compat.processors import VllmLogitsProcessor
from dovetail_vllm_compat.thoughts import VllmReasoningParser

ADAPTERS: dict[str, type[VllmToolParser] | type[VllmReasoningParser]] = {
    "tool_parser": VllmToolParser,
    "reasoning_parser": VllmReasoningParser,
}
FAMILIES = {"tool_parser": bases.ToolParser, "reasoning_parser": bases.ReasoningParser}


def run_file(module: ModuleType, path: Path) -> Mapping[str, Any]:
    """Run a file in the module made for it, and register its parsers. Mutates: module

    Returns what takes the place of its logits processors.
    Raises: BrokenPlugin for a name of vLLM that is not there, ConfigError where it offers nothing.
    """
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    bases.offers.clear()
    give_imports(module)
    try:
        with found_by_all():
            module.__spec__.loader.exec_module(module)
            parsers = [(offer, _parser(offer, module, path)) for offer in bases.offers]
    except MissingName as error:
        raise _missing(error, path) from error
    processors = _processors(module)
    is_package = module.__spec__.submodule_search_locations is not None
    if not (parsers or processors or is_package):
        raise ConfigError(
            "the file registers no parser, and has no logits processor.",
            where=str(path),
            fix="write `@ToolParserManager.register_module(NAME)` or "
            "`@ReasoningParserManager.register_module(NAME)` above its class, or derive it from "
            "vllm.v1.sample.logits_processor.LogitsProcessor.",
        )
    for offer, parser in parsers:
        register(offer.kind, offer.name)(_adapted(offer.kind, parser, module))
    return processors


def _processors(module: ModuleType) -> dict[str, type[VllmLogitsProcessor]]:
    """Return dovetail's logits processor for each of vLLM's that a module has, by its name."""
    return {
        name: VllmLogitsProcessor.for_class(value, name, module.__name__)
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, batches.LogitsProcessor)
        and not inspect.isabstract(value)
    }


def _parser(offer: bases.Offer, module: ModuleType, path: Path) -> type:
    """Return the class that an offer names. Raises: BrokenPlugin, MissingName"""
    parser = offer.parser
    if parser is None:
        own = offer.module in (module.__name__, path.stem)
        holder = module if own else _imported(offer, path)
        parser = getattr(holder, offer.attribute, None)
    if not isinstance(parser, type) or not issubclass(parser, FAMILIES[offer.kind]):
        family = FAMILIES[offer.kind].__name__
        raise BrokenPlugin(
            f'what it registers as "{offer.name}" does not derive from vllm\'s {family}.',
            where=str(path),
            fix=f"let the class derive from {family}.",
        )
    return parser


def _imported(offer: bases.Offer, path: Path) -> ModuleType:
    try:
        return importlib.import_module(offer.module)
    except MissingName:
        raise
    except Exception as error:
        raise BrokenPlugin(
            f'it registers "{offer.name}" from {offer.module}, and importing that raised '
            f"{type(error).__name__}: {error}.",
            where=str(path),
            fix="put its folder on PYTHONPATH, or write the class into the file.",
        ) from error


def _adapted(kind: str, parser: type, module: ModuleType) -> type:
    """Return dovetail's parser for one of vLLM's; several names have one. Mutates: module"""
    name = f"{parser.__name__}_{kind}"
    if name not in module.__dict__:
        module.__dict__[name] = ADAPTERS[kind].for_class(parser, name, module.__name__)
    made: type = module.__dict__[name]
    return made


def _missing(error: MissingName, path: Path) -> BrokenPlugin:
    """Return the error for a name that is not there, with the line that asks for it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    own = str(error.name).endswith(("_tool_parser", "_reasoning_parser"))
    kind = "reasoning_parser" if "reasoning" in str(error.name) else "tool_parser"
    return BrokenPlugin(
        f"{error}.",
        where=f"{path}:{lines[-1]}" if lines else str(path),
        fix=f"vLLM's own parsers are not part of it: choose one of `dovetail plugins list {kind}`."
        if own
        else "import names that only annotations need below `if TYPE_CHECKING:`, and write the "
        "others into the file.",
    )


VLLM = Value(summary="plugin files written for vLLM: parsers and logits processors", value=run_file)
