"""Every model plugin is known where model families are listed, and nowhere else by name."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from dovetail.config.checkpoint.hf_defaults import CLASS_DEFAULTS
from dovetail.config.checkpoint.model_facts import MODEL_FACTS, ModelFacts

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "dovetail"
TABLES = ("config/checkpoint/hf_defaults.py", "config/checkpoint/model_facts.py")


def architectures() -> list[str]:
    """Return the classes of checkpoints that have a plugin of their own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["dovetail.model"]
    return [
        name
        for name, target in entries.items()
        if target.startswith("dovetail_plugins.models.") and name != "transformers"
    ]


def plain(name: str) -> str:
    """Return a family's name without what spellings differ in."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(ForCausalLM|LMHeadModel)$", "", name).lower())


def test_the_readme_lists_every_family() -> None:
    text = (ROOT / "README.md").read_text().partition("## Models\n")[2].partition(" have ")[0]
    listed = {plain(name) for name in re.split(r",|\band\b", text)}
    assert listed == {plain(name) for name in architectures()}


@pytest.mark.parametrize("architecture", architectures())
def test_every_family_has_its_defaults(architecture: str) -> None:
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    names = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    types = {model_type for model_type, name in names.items() if name == architecture}
    assert types & set(CLASS_DEFAULTS), types


def test_model_types_are_named_in_one_place() -> None:
    """A list of model types elsewhere would be a second table that can differ."""
    unusual = {
        name
        for name, facts in MODEL_FACTS.items()
        if dataclasses.replace(facts, defaults={}) != ModelFacts()
    }
    named = []
    for path in CORE.rglob("*.py"):
        where = path.relative_to(CORE).as_posix()
        if where in TABLES or where.startswith("testing/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in unusual:
                named.append(f"{where}:{node.lineno} {node.value}")
    assert named == []
