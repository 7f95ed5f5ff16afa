"""The plugins that would be chosen, with the reasons that the selection itself logs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dovetail.config.config import Config
from dovetail.config.rules.selections import stored_quantization
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail_plugins.inspect.facts import Chosen, WeightFile

if TYPE_CHECKING:
    from dovetail_plugins.inspect.collect import EngineParts

ROOT = "dovetail"
_LINE = re.compile(r"(\w+) auto: (\S+?)[,:]?(?: (?:\(rank -?\d+\)(?:; )?)?(.*))?")
_FLAGS = {
    "attention_backend": "attention_backend",
    "load_format": "load_format",
    "quantization": "quantization",
    "tokenizer": "tokenizer_mode",
    "tool_parser": "tool_call_parser",
    "reasoning_parser": "reasoning_parser",
    "device": "device",
    "model": "model_impl",
}
"""Kind -> the flag that selects it."""

Told = list[str]
"""Log lines."""


class _LogCapture(logging.Handler):
    """Stores log messages."""

    def __init__(self, log_lines: Told) -> None:
        super().__init__(logging.INFO)
        self._told = log_lines

    def emit(self, record: logging.LogRecord) -> None:
        """Store one message. Mutates: log_lines"""
        self._told.append(record.getMessage())


@contextmanager
def listening() -> Iterator[Told]:
    """Yield the lines logged in the block, which are logged nowhere else."""
    log_lines: Told = []
    root, ears = logging.getLogger(ROOT), _LogCapture(log_lines)
    level, propagates, handlers = root.level, root.propagate, root.handlers
    root.propagate, root.handlers = False, [ears]
    root.setLevel(logging.INFO)
    try:
        yield log_lines
    finally:
        root.propagate, root.handlers = propagates, handlers
        root.setLevel(level)


def chosen(
    config: Config, parts: EngineParts, log_lines: Told, files: Sequence[WeightFile]
) -> tuple[Chosen, ...]:
    """Return the plugins in the order in which a request uses them."""
    lines = {match[1]: match[3] or "" for line in log_lines if (match := _LINE.fullmatch(line))}
    own = {
        "device": lines.get("platform", ""),
        "model": _model_reason(parts),
        "quantization": _quantization_reason(parts),
        "load_format": _files_reason(files),
    }
    choices = [
        Chosen(kind="device", name=parts.device, reason=_choice_reason(config, "device", own))
    ]
    for kind, selection in _selections(parts):
        if selection is None:
            continue
        reason = _choice_reason(config, kind, {**lines, **own})
        choices.append(Chosen(kind=kind, name=selection.name, reason=reason))
    if parts.spec is not None and parts.spec.run.pooling is not None:
        return tuple(choices)
    for kind in ("tool_parser", "reasoning_parser"):
        match = next(
            (m for line in log_lines if (m := _LINE.fullmatch(line)) and m[1] == kind), None
        )
        if match is not None:
            choices.append(Chosen(kind=kind, name=match[2], reason=match[3] or ""))
        elif config.is_given(_FLAGS[kind]):
            name = str(config.value(_FLAGS[kind]))
            choices.append(Chosen(kind=kind, name=name, reason=_choice_reason(config, kind, {})))
    return tuple(choices)


def _selections(parts: EngineParts) -> list[tuple[str, Selection | None]]:
    spec: EngineSpec | None = parts.spec
    return [
        ("load_format", parts.load_format),
        ("model", parts.model_plugin),
        ("quantization", parts.quantization),
        ("attention_backend", spec.run.attention if spec else None),
        ("tokenizer", spec.tokenizer if spec else None),
    ]


def _choice_reason(config: Config, kind: str, reasons: dict[str, str]) -> str:
    """Return the flag that requests the plugin, or why it was chosen."""
    flag = _FLAGS[kind]
    if config.is_given(flag) and config.value(flag) not in (None, "", "auto"):
        return f"asked for: {config.origins[flag]}"
    return reasons.get(kind, "")


def _model_reason(parts: EngineParts) -> str:
    if parts.model_plugin is None:
        return ""
    if parts.model_plugin.name == parts.model.architecture:
        return "the architecture has its own plugin"
    if parts.model.code is not None:
        return f"{parts.model.architecture} is code that comes with the checkpoint"
    return f"no plugin for {parts.model.architecture}, but transformers knows it"


def _quantization_reason(parts: EngineParts) -> str:
    stored = stored_quantization(parts.model) if parts.quantization else None
    return f'the checkpoint is stored as "{stored}"' if stored else "the checkpoint has none"


def _files_reason(files: Sequence[WeightFile]) -> str:
    ends: dict[str, int] = {}
    for file in files:
        end = file.name.rpartition(".")[2]
        ends[end] = ends.get(end, 0) + 1
    return ", ".join(f"{count} .{end} file{'s' * (count > 1)}" for end, count in ends.items())
