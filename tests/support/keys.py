"""Keys files, and requests with their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dovetail_plugins.gates._keys_file import hash_of


def write_keys(file: Path, **keys: dict[str, Any]) -> str:
    """Write a keys file in which NAME's key is "sk-NAME"; return its path."""
    rows = [{"name": name, "hash": hash_of(f"sk-{name}"), **more} for name, more in keys.items()]
    file.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return str(file)


def bearer(name: str) -> dict[str, str]:
    """Return the header with NAME's key."""
    return {"authorization": f"Bearer sk-{name}"}
