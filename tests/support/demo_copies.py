"""Copies of the demo model with something wrong, for tests of the errors of bad checkpoints.

Files that stay as they are become links, so that a copy costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

WEIGHTS = "model.safetensors"


def demo_copy(folder: Path, *without: str, **config: Any) -> str:
    """Return a copy inside `folder`, without some files and with other values in config.json."""
    model = folder / "model"
    model.mkdir()
    for file in DEMO_PATH.iterdir():
        if file.name not in (*without, "config.json"):
            (model / file.name).symlink_to(file)
    if "config.json" not in without:
        facts = json.loads((DEMO_PATH / "config.json").read_text(encoding="utf-8")) | config
        (model / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    return str(model)


def with_file(model: str, name: str, content: str | bytes) -> str:
    """Put a file into a model folder, in place of a link to the demo's; return the folder."""
    path = Path(model) / name
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return model


def with_weights(folder: Path, change: Callable[[bytes], bytes]) -> str:
    """Return a copy whose weight file was changed."""
    content = change((DEMO_PATH / WEIGHTS).read_bytes())
    return with_file(demo_copy(folder, WEIGHTS), WEIGHTS, content)


def with_header(folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Return a copy whose safetensors header was changed; the data stays where it is."""

    def rewrite(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + length :]

    return with_weights(folder, rewrite)
