"""The extras: what users may install besides, and that whoever asks for one names it."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.errors import PluginError
from dovetail.interfaces.plugin import Info

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OWN = re.compile(r"dovetail-llm\[([\w,-]+)\]")
FOR_USERS = EXTRAS.keys() - {"all", "test", "lint", "docs", "release"}
DISTRIBUTIONS = {
    "runai_model_streamer": "runai-model-streamer",
    "lmformatenforcer": "lm-format-enforcer",
    "outlines_core": "outlines-core",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
"""Modules whose distribution is called otherwise."""


def distributions(requirements: list[str]) -> set[str]:
    """Return the names of what is required, extras of ours followed."""
    names = set()
    for requirement in requirements:
        if own := OWN.match(requirement):
            for extra in own[1].split(","):
                names |= distributions(EXTRAS[extra])
        else:
            names.add(re.split(r"[\[<>=; ]", requirement)[0])
    return names


def plugins() -> dict[str, Any]:
    """Return every plugin class that can be loaded here."""
    found = {}
    for kind in registry.KINDS:
        for entry in registry.entries(kind):
            try:
                plugin = registry.admin.load_entry(entry)
            except PluginError:
                continue
            if isinstance(getattr(plugin, "info", None), Info):
                found[f"{kind}:{entry.name}"] = plugin
    return found


def test_all_is_all_that_users_may_want() -> None:
    (only,) = EXTRAS["all"]
    match = OWN.fullmatch(only)
    assert match and set(match[1].split(",")) == FOR_USERS


def test_every_extra_that_is_named_exists() -> None:
    files = [p for part in ("core", "plugins", "docs", "contrib") for p in (ROOT / part).rglob("*")]
    texts = [p.read_text() for p in (*files, ROOT / "README.md") if p.suffix in (".py", ".md")]
    named = {extra for text in texts for m in OWN.findall(text) for extra in m.split(",")}
    assert {"plot", "plugin-check", "tracing"} <= named
    assert named <= EXTRAS.keys()


def test_what_plugins_need_is_in_the_extra_they_name() -> None:
    base = distributions(PROJECT["dependencies"])
    given = {name: plugin for name, plugin in plugins().items() if plugin.info.requires}
    assert "structured_output_backend:guidance" in given
    for name, plugin in given.items():
        needed = {DISTRIBUTIONS.get(module, module) for module in plugin.info.requires}
        if plugin.info.extra:
            assert needed <= distributions(EXTRAS[plugin.info.extra]), name
        elif "unavailable_reason" not in vars(plugin):  # where it says itself what to install
            assert needed <= base, name


def test_a_backend_for_structured_output_is_part_of_the_base() -> None:
    assert "llguidance" in distributions(PROJECT["dependencies"])


@pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux")
def test_the_suite_runs_every_backend_for_structured_output() -> None:
    here = {name for names in packages_distributions().values() for name in names}
    wanted = distributions(EXTRAS["structured-output"]) | distributions(EXTRAS["xgrammar"])
    assert wanted <= distributions(EXTRAS["test"])
    assert wanted <= {name.replace("_", "-") for name in here}
