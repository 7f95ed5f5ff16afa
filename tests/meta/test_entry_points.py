"""The entry-point table of pyproject.toml and the plugin folders agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.config.compat.unsupported_flags import UNSUPPORTED_FLAGS
from dovetail.config.config import flags
from dovetail.registry.verify import verify

ROOT = Path(__file__).resolve().parents[2]
TABLE: dict[str, dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "entry-points"
]


def test_every_group_is_a_kind() -> None:
    groups = {kind.group for kind in registry.KINDS.values()} | {"dovetail.hooks"}
    assert set(TABLE) <= groups


def test_nothing_of_the_kit_is_offered_to_users() -> None:
    targets = {target for group in TABLE.values() for target in group.values()}
    assert {target for target in targets if target.startswith("dovetail_testing")} == set()


def test_every_kind_has_an_entry() -> None:
    """A kind without one is of flags that are unsupported or deprecated, or takes import paths."""
    empty = [name for name, kind in registry.KINDS.items() if kind.group not in TABLE]
    chosen_by = {kind: [f.name for f in flags().values() if f.meta.kind == kind] for kind in empty}
    supported = {
        kind: [name for name in names if name not in UNSUPPORTED_FLAGS]
        for kind, names in chosen_by.items()
    }
    assert [k for k in empty if supported[k] and not registry.KINDS[k].is_open] == []


SHARED = set(
    [
        "accounts",
        "batch",
        "bench",
        "created_models",
        "device_workers",
        "gateway",
        "http_client",
        "inspect",
        "joining",
        "layers",
        "media_processors",
        "modelfile",
        "ollama_registry",
        "quantize",
        "published",
        "ranks",
        "supervised",
        "syntax",
        "packed_weights",
        "tune",
        "weight_transfer",
    ]
)
"""Folders of what plugins share, which hold none."""


def test_every_public_plugin_file_is_declared() -> None:
    plugins = ROOT / "plugins" / "dovetail_plugins"
    targets = [target for group in TABLE.values() for target in group.values()]
    for name in registry.names("command"):
        targets += registry.load("command", name).parts.values()
    declared = {target.split(":")[0] for target in targets}
    files = {
        ".".join(("dovetail_plugins", *path.relative_to(plugins).with_suffix("").parts))
        for path in plugins.glob("*/*.py")
        if not path.name.startswith("_") and path.parent.name not in SHARED
    }
    assert files - declared == set()


@pytest.mark.parametrize("kind", sorted(registry.KINDS))
def test_every_declaration_is_valid(kind: str) -> None:
    for entry in registry.entries(kind):
        verify(kind, registry.admin.load_target(kind, entry.target), entry.target)
