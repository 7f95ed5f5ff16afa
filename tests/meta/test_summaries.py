"""What help reads from a plugin's source is what the plugin says once it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail import registry
from dovetail.registry.summaries import summary_of


@pytest.mark.parametrize("kind", sorted(registry.KINDS))
def test_the_source_says_what_the_plugin_says(kind: str) -> None:
    for entry in registry.entries(kind):
        plugin = registry.admin.load_target(kind, entry.target)
        stated = plugin.info.summary if isinstance(plugin, type) else plugin.summary
        assert summary_of(entry) == stated, entry.id


SOURCE = """
from enum import Enum as Plain
class A(Whoever):
    info = Info(summary="of a", source="x")
class B(A): pass
class C(B):
    info: Info = Info(source="x", summary=f"{1}")
D = E = Value(value=1, summary="of d "
              "and e")
raise RuntimeError("imported")
"""


@pytest.mark.parametrize(
    ("attribute", "told"),
    [("A", "of a"), ("B", "of a"), ("C", ""), ("E", "of d and e"), ("Plain", ""), ("F", "")],
)
def test_summaries_are_read_without_an_import(attribute: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "plugins.py"
    file.write_text(SOURCE)
    target = f"{file}:{attribute}"
    entry = registry.Entry(kind="platform", name="x", distribution="mine", target=target)
    assert summary_of(entry) == told


@pytest.mark.parametrize("module", ["no_such_package.inner", "dovetail.nowhere", "/no/file.py"])
def test_what_cannot_be_read_has_no_summary(module: str) -> None:
    entry = registry.Entry(kind="platform", name="x", distribution="mine", target=f"{module}:X")
    assert summary_of(entry) == ""
