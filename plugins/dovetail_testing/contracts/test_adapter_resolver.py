"""AdapterResolver: finds folders of adapters under the requested names, and no others.

The plugin is made with its `Options` filled by `sample_options`, for a folder that it may fill by
`sample`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.adapter_resolver import AdapterResolver, ResolverFacts

BASE = "org/base"
NAME = "poems"
CONFIG = "adapter_config.json"
OUTSIDE = (
    "",
    ".",
    "..",
    f"../{NAME}",
    f"there/../../{NAME}",
    f"/{NAME}",
    f"{NAME}/",
    f"..\\{NAME}",
    f"{NAME}\0",
    "x" * 300,
    "\ud800",
    "%2e%2e/x",
)


class TestAdapterResolver:
    """Clauses of resolvers."""

    kind = "adapter_resolver"

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """Return a folder with an adapter in it; another adapter is outside of it."""
        for folder in (tmp_path / "within" / NAME, tmp_path / NAME):
            _write(folder, BASE)
        _write(tmp_path / "within" / "foreign", "another/base")
        return tmp_path / "within"

    @pytest.fixture
    def resolver(self, plugin: Any, place: Path) -> AdapterResolver:
        """Return a resolver for the folder."""
        facts = ResolverFacts(base_names=(BASE, "served"), model_path=str(place / "model"))
        resolver: AdapterResolver = plugin(plugin.Options(**plugin.sample_options(place)), facts)
        return resolver

    def test_what_is_there_is_found(self, resolver: AdapterResolver) -> None:
        """Its sample is found under its name, in a folder with an adapter_config.json."""
        found = resolver.find(NAME)
        assert found is not None
        assert found.name == NAME
        assert (Path(found.path) / CONFIG).is_file()

    def test_what_is_not_there_is_none(self, resolver: AdapterResolver) -> None:
        """A name that it does not know is None, not an error."""
        assert resolver.find("nothing-of-this-name") is None

    @pytest.mark.parametrize("name", OUTSIDE, ids=range(len(OUTSIDE)))
    def test_no_name_leads_elsewhere(self, resolver: AdapterResolver, name: str) -> None:
        """A name that is a path, or no name at all, is None."""
        assert resolver.find(name) is None

    def test_the_base_counts(self, resolver: AdapterResolver) -> None:
        """An adapter of another model is not found."""
        assert resolver.find("foreign") is None

    def test_threads_do_not_mix(self, resolver: AdapterResolver) -> None:
        """Many threads may call it concurrently; each gets the answer to its own name."""
        names = [NAME, "nothing-of-this-name"] * 32
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(resolver.find, names))
        assert [one and one.name for one in found] == [NAME, None] * 32

    def test_nothing_is_written(self, resolver: AdapterResolver, place: Path) -> None:
        """Asking changes no file of the folder."""
        before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
        resolver.find(NAME)
        resolver.find("nothing-of-this-name")
        assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def _write(folder: Path, base: str) -> None:
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": base}
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
