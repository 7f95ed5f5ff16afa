"""Schemas as they are found in editors, manifests, APIs and programs: the share that is taken, and
that nothing wrong is written or taken under them.

tests/data/schemas/wild and .../published have groups of cases: a schema, and values that are valid
under it, their members in the order of the schema. Values near to those are judged by jsonschema.
benchmarks/schemas.py walks longer, and asks every backend.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.structured_output import StructuredOutputBackend
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer, follows, small_vocabulary
from support.samples import sample_of
from support.schema_judge import Judge
from support.schema_sampling import compiled_or_refusal, near_misses

SCHEMAS = Path(__file__).resolve().parents[2] / "data" / "schemas"
CORPORA = {"wild": 150, "published": 120}
"""Folder -> how many schemas it has at least."""
GROUPS = [
    f"{folder}/{path.stem}" for folder in CORPORA for path in sorted((SCHEMAS / folder).iterdir())
]
SHARE = 0.9
WALKS = sample_of(2, 1)
NEAR = sample_of(4, 2)
REFUSED = {"to another document": "/$ref"}
"""What no backend takes, and the keyword for which it is refused."""


def cases(group: str) -> dict[str, Any]:
    """Return name -> case of a group."""
    found: dict[str, Any] = json.loads((SCHEMAS / f"{group}.json").read_text(encoding="utf-8"))
    return found


@cache
def guidance() -> StructuredOutputBackend:
    """Return the backend that `auto` asks first."""
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    made: StructuredOutputBackend = plugin(plugin.Options(), small_vocabulary())
    return made


@pytest.mark.parametrize("folder", CORPORA)
def test_a_corpus_is_large_and_its_values_are_valid(folder: str) -> None:
    groups = [group for group in GROUPS if group.startswith(folder)]
    found = [case for group in groups for case in cases(group).values()]
    assert len(found) >= CORPORA[folder]
    assert len(found) - len(REFUSED) >= SHARE * len(found)
    for case in found:
        judge = Judge(case["schema"])
        for value in case["valid"]:
            assert judge.fault(json.dumps(value).encode()) is None, case


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("group", GROUPS)
def test_schemas_are_taken_and_nothing_wrong_with_them(group: str) -> None:
    made, chance, vocabulary = guidance(), random.Random(group), small_vocabulary()
    wanderer, num_wrong_tried = Wanderer(vocabulary), 0
    for name, case in cases(group).items():
        found = compiled_or_refusal(made, case["schema"])
        assert isinstance(found, str) == (name in REFUSED), f"{name}: {found}"
        if isinstance(found, str):
            continue
        judge = Judge(case["schema"])
        for _ in range(WALKS):
            walk = wanderer.walk(found.matcher(), chance, max_tokens=200)
            assert walk.end in ("end", "long"), name
            text = wanderer.written(walk.token_ids)
            assert walk.end == "long" or judge.fault(text) is None, f"{name}: {text!r}"
        for value in case["valid"]:
            text = json.dumps(value, ensure_ascii=False).encode()
            assert follows(found.matcher(), vocabulary, text), f"{name}: {text!r}"
            for near in (near for _ in range(NEAR) for near in near_misses(text, chance)):
                if judge.fault(near) is None:
                    continue
                num_wrong_tried += 1
                assert not follows(found.matcher(), vocabulary, near), f"{name}: {near!r}"
    assert num_wrong_tried > 40


def test_refusals_name_the_keyword() -> None:
    from dovetail.errors import RequestError
    from dovetail.interfaces.data.constraint import JsonSchema
    from dovetail.structured_output.select_backend import prepared, unsupported_parts

    every = {name: case["schema"] for group in GROUPS for name, case in cases(group).items()}
    for name, keyword in REFUSED.items():
        try:
            parts = unsupported_parts(type(guidance()), prepared(JsonSchema(every[name]), "schema"))
            where = parts[0].pointer
        except RequestError as error:
            where = str(error.where)
        assert where.endswith(keyword), name
