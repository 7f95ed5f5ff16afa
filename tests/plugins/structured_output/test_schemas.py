"""Schemas of the world: what the reference page says of them still holds, and answers meet them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.interfaces.structured_output import StructuredOutputBackend
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer, follows, small_vocabulary
from support.schema_judge import Judge
from support.schema_sampling import compiled_or_refusal

ROOT = Path(__file__).resolve().parents[3]
FIGURES = json.loads((ROOT / "docs" / "reference" / "structured_output.json").read_text())
NAMES = ("guidance", "lm-format-enforcer", "outlines", "xgrammar")
GROUPS = ("answers", "documents", "kubernetes", "openapi", "references", "trees")
QUICK = ("answers", "references")
"""What the slower ones are asked for here; benchmarks/schemas.py asks all for all."""
WALKS = 2


@cache
def backend(name: str) -> StructuredOutputBackend:
    """Return a backend over the kit's vocabulary."""
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", name)
    made: StructuredOutputBackend = plugin(plugin.Options(), small_vocabulary())
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_hold(name: str) -> None:
    made, chance = backend(name), random.Random(0)
    wanderer = Wanderer(small_vocabulary())
    for group in GROUPS if name == "guidance" else QUICK:
        path = ROOT / "tests" / "data" / "schemas" / f"{group}.json"
        schemas = json.loads(path.read_text(encoding="utf-8"))
        num_taken = 0
        for word, schema in schemas.items():
            found = compiled_or_refusal(made, schema)
            if isinstance(found, str):
                continue
            num_taken += 1
            judge = Judge(schema)
            for _ in range(WALKS):
                walk = wanderer.walk(found.matcher(), chance, max_tokens=200)
                assert walk.end in ("end", "long"), word
                text = wanderer.written(walk.token_ids)
                assert walk.end == "long" or judge.fault(text) is None, f"{word}: {text!r}"
        kept = FIGURES["schemas"][group][name]
        assert (len(schemas), num_taken) == (kept["schemas"], kept.get("taken", 0)), group


@pytest.mark.parametrize("name", NAMES)
def test_branches_that_a_constant_tells_apart_are_taken(name: str) -> None:
    lengths = {"circle": ["radius"], "box": ["width", "height"]}
    shapes = {
        kind: {
            "type": "object",
            "properties": {"kind": {"const": kind}} | {n: {"type": "integer"} for n in names},
            "required": ["kind", *names],
            "additionalProperties": False,
        }
        for kind, names in lengths.items()
    }
    refs = [{"$ref": f"#/$defs/{kind}"} for kind in shapes]
    schema = {"oneOf": refs, "$defs": shapes, "discriminator": {"propertyName": "kind"}}
    found = compiled_or_refusal(backend(name), schema)
    assert not isinstance(found, str)
    for text, is_right in (
        (b'{"kind": "circle", "radius": 3}', True),
        (b'{"kind": "box", "width": 1, "height": 2}', True),
        (b'{"kind": "box", "radius": 3}', False),
        (b'{"kind": "line", "radius": 3}', False),
    ):
        assert follows(found.matcher(), small_vocabulary(), text) == is_right


@pytest.mark.parametrize("name", NAMES)
def test_branches_that_overlap_are_taken_each_without_the_other(name: str) -> None:
    refs = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    defs = {"a": {"type": "object", "required": ["a"]}, "b": {"type": "object", "required": ["b"]}}
    found = compiled_or_refusal(backend(name), refs | {"$defs": defs})
    assert not isinstance(found, str)
    for text, is_right in ((b'{"a": 1}', True), (b'{"b": 1}', True), (b'{"a": 1, "b": 1}', False)):
        assert follows(found.matcher(), small_vocabulary(), text) == is_right


@pytest.mark.parametrize("name", NAMES)
def test_branches_that_nothing_tells_apart_are_refused(name: str) -> None:
    schema = {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"}
    assert isinstance(compiled_or_refusal(backend(name), schema), str)
