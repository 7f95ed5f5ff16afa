"""A package of somebody else's, laid into a folder as pip would, with plugins for its tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dovetail.registry import discovery


def lay(folder: Path, name: str, code: str, entries: Mapping[str, Mapping[str, str]]) -> None:
    """Write a distribution of one module: its code, and `entries`, kind -> name -> target."""
    module = name.lower().replace("-", "_").replace(".", "_")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for kind, names in entries.items():
        lines += [f"[dovetail.{kind}]", *(f"{key} = {target}" for key, target in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@contextmanager
def installed(
    folder: Path, name: str, code: str, entries: Mapping[str, Mapping[str, str]]
) -> Iterator[None]:
    """Have the distribution on the import path of this process for the duration."""
    lay(folder, name, code, entries)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    discovery.forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        discovery.forget()
        for module in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]
