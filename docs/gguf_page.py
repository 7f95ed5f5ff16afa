"""The page of GGUF architectures: which are read, as which class, and why the others are not.

The rows come from plugins/dovetail_plugins/gguf/_architectures.py, what is served from safetensors
from the registry and from architectures.json.
"""

from __future__ import annotations

import json
from pathlib import Path

FOUND = Path(__file__).parent / "reference" / "architectures.json"
HEAD = """\
# GGUF architectures

{note}

Every architecture that `general.architecture` of a GGUF file can name, as the gguf package knows
them: {read} are read here, {unread} are not. *Class*: what the file is served as, a class of
[the architectures](architectures.md) that are served from safetensors, by dovetail's own plugin or
over transformers. Tests write a small random checkpoint of each as a GGUF file, with the package's
own writer, and compare the logits with those of transformers. Types of blocks, tokenizers and
what a file lacks: [serve a GGUF file](../how_to/serve_a_gguf_file.md).

| GGUF | class | from safetensors | from GGUF |
|---|---|---|---|"""


def gguf_page(note: str) -> str:
    """Return the page; `note` says that it is written by a script."""
    from dovetail_plugins.gguf._architectures import READ, UNREAD

    rows = {name: _read(classes.split()) for name, classes in READ.items()}
    rows |= {name: (row.classes, "no", f"no: {row.why}") for name, row in UNREAD.items()}
    head = HEAD.format(note=note, read=len(READ), unread=len(UNREAD))
    return "\n".join([head, *(_row(name, *rows[name]) for name in sorted(rows))]) + "\n"


def _read(classes: list[str]) -> tuple[tuple[str, ...], str, str]:
    return tuple(classes), "; ".join(dict.fromkeys(map(_served, classes))), "yes"


def _served(name: str) -> str:
    """Return how a class is served from safetensors."""
    from dovetail.config.rules.model.architectures import registered

    return "own plugin" if registered(name) else "over transformers"


def served_over_transformers() -> set[str]:
    """Return the classes that run over transformers, by the last sweep."""
    results = json.loads(FOUND.read_text(encoding="utf-8"))["results"]
    return {one["architecture"] for one in results.values() if one["state"] == "backed"}


def _row(name: str, classes: tuple[str, ...], from_safetensors: str, from_gguf: str) -> str:
    shown = ", ".join(f"`{one}`" for one in classes)
    return f"| `{name}` | {shown} | {from_safetensors if classes else ''} | {from_gguf} |"
