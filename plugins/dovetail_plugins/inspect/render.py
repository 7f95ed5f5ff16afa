"""The output of `dovetail inspect`: the facts as lines of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from dovetail.errors import listed
from dovetail_plugins.inspect.facts import (
    FileFacts,
    Group,
    Inspected,
    Memory,
    ModelFacts,
    TextFacts,
)
from dovetail_plugins.inspect.from_disk import in_words as in_words_of
from dovetail_plugins.inspect.purpose import GENERATE, in_words

WIDTH = 100
LABEL = 19
"""The width of a line's label."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_COUNTS = ("", " K", " M", " B", " T")
_COLUMNS = ("layers of", "number", "parameters", "stored as", "kept as", "on disk", "in memory")
_WIDTHS = (15, 6, 11, 18, 24, 12, 10)


def render(found: Inspected) -> str:
    """Return the whole output."""
    parts = [_head(found), _table(found), _activations(found)]
    if found.memory is not None:
        parts.append(_memory(found.memory, found.model))
    parts += [_plugins(found), _text(found)]
    if found.warnings:
        parts.append(["warnings", *(line for text in found.warnings for line in _item(text))])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def size(num_bytes: int) -> str:
    """Return a formatted number of bytes, with at most four digits."""
    value, unit = float(num_bytes), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def count(number: int) -> str:
    """Return a formatted number, with three or four digits."""
    value, unit = float(number), 0
    while value >= 1000 and unit < len(_COUNTS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f}" if unit == 0 else f"{value:.3g}{_COUNTS[unit]}"


def _head(found: Inspected) -> list[str]:
    model = found.model
    shape = (
        f"{model.layers} layers, hidden {model.hidden_size}, {model.heads} heads of "
        f"{model.head_size}, {model.kv_heads} for keys and values"
    )
    lines = [f"{model.architecture}  {found.path}"]
    if found.purpose is not None:
        lines += _line("made for", in_words(found.purpose, found.media))
    lines += _line("shape", shape)
    if model.experts:
        lines += _line("experts", f"{model.experts}, {model.experts_per_token} work on a token")
    lines += _line("vocabulary", f"{model.vocab_size} tokens")
    window = f", {model.window_tokens} in windowed layers" if model.window_tokens else ""
    lines += _line("context", f"{model.context_tokens} tokens{window}")
    if found.parameters:
        active = f", {count(found.active_parameters)} of them active for a token"
        many = found.active_parameters != found.parameters
        lines += _line("parameters", count(found.parameters) + (active if many else ""))
    total = sum(file.bytes for file in found.files)
    names = listed([file.name for file in found.files], 2)
    lines += _line("files", f"{names}: {size(total)}" if found.files else "none")
    return lines + (_of_file(found, found.file) if found.file else [])


def _of_file(found: Inspected, file: FileFacts) -> list[str]:
    """Return what a GGUF file says of itself, and what it does without."""
    words = [f"called {file.name}"] if file.name else []
    words += [f"license {file.license}"] if file.license else []
    lines = _line("origin", ", ".join(words)) if words else []
    measured = f", with importances of {file.importances}" if file.importances else ""
    lines += _line("quantization", f"{file.mixture or 'not named'}{measured}")
    for one in file.lacks:
        lines += _line("not in the file", one)
    if not found.media and found.purpose is not None and GENERATE in found.purpose.tasks:
        lines += _line("images, sound", "none: no projector file is used (--mmproj FILE names one)")
    return lines


def _table(found: Inspected) -> list[str]:
    """Return a row per group; further formats of a group are on the lines below."""
    if not found.groups:
        return []
    lines = [_row(_COLUMNS)]
    for group in found.groups:
        lines += _group(group)
    tables = found.memory.tables_bytes if found.memory else 0
    if tables:
        lines.append(_row(("rotary tables", "", "", "", "float32", "", size(tables))))
    stored = sum(group.stored_bytes for group in found.groups)
    memory_bytes = sum(group.kept_bytes for group in found.groups) + tables
    total = ("all", "", count(found.parameters), "", "", size(stored), size(memory_bytes))
    return [*lines, _row(total)]


def _group(group: Group) -> list[str]:
    stored, in_memory = _forms(group.stored), _forms(group.kept)
    about = "" if group.is_exact else "~"
    first = (
        group.name,
        str(group.layers),
        count(group.parameters),
        stored[0],
        in_memory[0],
        size(group.stored_bytes),
        about + size(group.kept_bytes),
    )
    rest = [
        ("", "", "", *(forms[i] if i < len(forms) else "" for forms in (stored, in_memory)), "", "")
        for i in range(1, max(len(stored), len(in_memory)))
    ]
    return [_row(row) for row in (first, *rest)]


def _forms(forms: Mapping[str, int]) -> list[str]:
    """Return the formats, each with its share if there are several."""
    total = sum(forms.values())
    if len(forms) == 1 or not total:
        return list(forms)
    return [f"{name} {100 * part / total:.0f} %" for name, part in forms.items()]


def _activations(found: Inspected) -> list[str]:
    """Return the activation types in products, one line per group."""
    groups = [group for group in found.groups if group.activations]
    lines = [line for one in groups for line in _line(one.name, "; ".join(_forms(one.activations)))]
    return ["activations in products", *lines] if lines else []


def _row(cells: Sequence[str]) -> str:
    left = [f"{cells[0]:<{_WIDTHS[0]}}", f"{cells[1]:>{_WIDTHS[1]}}", f"{cells[2]:>{_WIDTHS[2]}}"]
    middle = [f" {cells[i]:<{_WIDTHS[i] - 1}}" for i in (3, 4)]
    right = [f"{cells[i]:>{_WIDTHS[i]}}" for i in (5, 6)]
    return "".join([*left, " ", *middle, *right]).rstrip()


def _memory(memory: Memory, model: ModelFacts) -> list[str]:
    free = "" if memory.free_bytes is None else f", {size(memory.free_bytes)} free"
    about = "" if memory.is_exact else "about "
    lines = [
        f"memory on {memory.device}{free}",
        *_line("weights", about + size(memory.weights_bytes + memory.tables_bytes)),
    ]
    if memory.from_disk is not None:
        lines += _line("not in memory", in_words_of(memory.from_disk))
    cached = f"{size(memory.kv_bytes_per_token)} a token ({memory.kv_dtype})"
    lines += _line("KV cache", cached if memory.kv_bytes_per_token else "none is needed")
    if memory.state_bytes_per_request:
        lines += _line("states", f"{size(memory.state_bytes_per_request)} a request")
    if memory.longest_tokens == 0:
        lines += _line("longest context", "none: no memory is left after the weights")
    elif memory.longest_tokens is not None:
        whole = memory.longest_tokens >= model.context_tokens
        text = f"{memory.longest_tokens} tokens" + (", the checkpoint's own limit" * whole)
        lines += _line("longest context", text)
        texts = [f"{fit.requests} of {fit.context_tokens} tokens" for fit in memory.fits]
        if texts:
            lines += _line("requests at a time", " or ".join(texts))
    if memory.served_tokens is not None:
        cache = "" if memory.cache_bytes is None else f"a KV cache of {size(memory.cache_bytes)}, "
        text = f"{cache}contexts up to {memory.served_tokens} tokens, up to "
        lines += _line("serve would take", f"{text}{memory.most_requests} requests at a time")
    return lines


def _plugins(found: Inspected) -> list[str]:
    lines = ["plugins that serve would choose"]
    for one in found.plugins:
        name = f"{one.name}: {one.reason}" if one.reason else one.name
        lines += _line(one.kind.replace("_", " "), name)
    return lines if found.plugins else []


def _text(found: Inspected) -> list[str]:
    text: TextFacts | None = found.text
    lines = ["text"]
    if text is not None:
        begin = f", begins with {text.bos_token}" if text.bos_token else ""
        ends = f", ends with {' '.join(text.end_tokens)}" if text.end_tokens else ""
        special = f"{text.vocab_size} tokens, {text.special_tokens} special"
        lines += _line("tokenizer", special + begin + ends)
    if found.purpose is not None and GENERATE not in found.purpose.tasks:
        return lines
    if text is not None:
        knows = ", knows tools" if text.knows_tools else ""
        template = f"{text.template_chars} characters{knows}" if text.has_chat_template else "none"
        lines += _line("chat template", template)
        parsers = f"{text.tool_parser or 'none'}, reasoning {text.reasoning_parser or 'none'}"
        lines += _line("parsers", f"tool calls {parsers}")
    sampling = ", ".join(f"{name} {value}" for name, value in found.generation.items())
    return lines + _line("sampling", sampling or "none in the checkpoint")


def _line(label: str, text: str) -> list[str]:
    """Return a label and its text, wrapped if it is long."""
    return _wrapped(text, f"  {label:<{LABEL}}", " " * (LABEL + 2))


def _item(text: str) -> Iterable[str]:
    return _wrapped(" ".join(text.split()), "  - ", "    ")


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=True,
        break_on_hyphens=False,
    ) or [first.rstrip()]
