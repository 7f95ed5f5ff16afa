"""Samples a structured-output backend: schemas in, random answers and near misses out, judged.

Two ways to be wrong are looked for: a walk that ends in a text that breaks the schema, and a text
beside a right one (a changed number, a name twice, an escaped letter) that is taken nevertheless.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.data.constraint import JsonSchema
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    StructuredOutputBackend,
)
from dovetail.structured_output.artifacts import ArtifactLoader, compiled, packed
from dovetail.structured_output.select_backend import unsupported_parts
from dovetail_grammars.rewriting.pipeline import rewritten
from dovetail_grammars.schema import ENFORCED_BESIDE
from dovetail_testing.random_walks import Wanderer, follows, small_vocabulary
from support.schema_judge import Judge
from support.schema_keywords import node, placed

WALKS_PER_SCHEMA = 25
MAX_DRAWN = 8000
IN_VAIN = 250
"""After so many schemas of which the backend took none, a keyword or pair counts as refused."""
VOCABULARY = small_vocabulary()
_LOADER = ArtifactLoader(VOCABULARY)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What sampling one keyword or pair came to."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[Any, bytes, str]] = field(default_factory=list)

    def note(self, schema: Any, text: bytes, fault: str | None) -> None:
        """Count a judged text. Mutates: self"""
        self.counts["judged"] += 1
        if fault is not None:
            self.counts["wrong"] += 1
            if len(self.faults) < 5:
                self.faults.append((schema, text, fault))


def compiled_or_refusal(backend: StructuredOutputBackend, schema: Any) -> LoadedConstraint | str:
    """Return a loaded schema, or the word for how it was refused."""
    try:
        constraint = JsonSchema(rewritten(schema))
    except InvalidConstraint:
        return "refused"
    if unsupported_parts(type(backend), constraint):
        return "refused"
    try:
        return _LOADER.loaded(backend, packed(compiled(backend, constraint)))
    except InvalidConstraint:
        return "invalid"


def sample(
    backend: StructuredOutputBackend,
    words: tuple[str, ...],
    num_samples: int,
    seed: int,
    limit_s: float = 60.0,
) -> Tally:
    """Return what at least `num_samples` answers to schemas with these keywords came to.

    Schemas that nothing meets are refused: as many more are drawn as it takes.
    """
    chance = random.Random(f"{seed} {words}")
    wanderer = Wanderer(VOCABULARY)
    tally = Tally()
    keywords = backend.keywords | ENFORCED_BESIDE
    end_s = time.monotonic() + limit_s
    for number in range(MAX_DRAWN):
        is_in_vain = number >= IN_VAIN and not tally.counts["schemas"]
        if tally.counts["end"] >= num_samples or is_in_vain or time.monotonic() > end_s:
            break
        schema = placed(node(words, keywords, chance), chance)
        found = compiled_or_refusal(backend, schema)
        if isinstance(found, str):
            tally.counts[found] += 1
            continue
        tally.counts["schemas"] += 1
        sample_schema(found, schema, wanderer, chance, tally)
    return tally


def sample_schema(
    found: LoadedConstraint, schema: Any, wanderer: Wanderer, chance: random.Random, tally: Tally
) -> None:
    """Walk through one schema several times; judge each text and texts beside it. Mutates: tally"""
    judge = Judge(schema)
    for _ in range(WALKS_PER_SCHEMA):
        walk = wanderer.walk(found.matcher(), chance)
        text = wanderer.written(walk.token_ids)
        tally.counts[walk.end] += 1
        if walk.end == "end":
            tally.note(schema, text, judge.fault(text))
        elif walk.end != "long":
            tally.note(schema, text, f"walk ended: {walk.end}")
        for near in near_misses(text, chance) if walk.end == "end" else ():
            fault = judge.fault(near)
            if fault is None:
                continue
            tally.counts["near"] += 1
            if follows(found.matcher(), wanderer.vocabulary, near):
                tally.note(schema, near, f"taken: {fault}")


OTHERS: tuple[Any, ...] = (
    *(0, -1, 4, 2.5, 1e3, True, None, "", "a", "b", "xyz1"),
    *([], [1], {}, {"a": 1}, {"b": None}),
)


def near_misses(text: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield texts a small change away from a JSON text."""
    decoded = text.decode(errors="replace")
    try:
        value = json.loads(decoded)
    except ValueError:
        return
    yield json.dumps(_changed(value, chance), ensure_ascii=False).encode()
    yield _escaped(decoded, chance).encode(errors="replace")
    yield _digits(decoded, chance).encode(errors="replace")
    if isinstance(value, dict) and value:
        yield _twice(value, chance).encode()


def _changed(value: Any, chance: random.Random) -> Any:
    """Return a value with one part of it replaced, left out or added."""
    if isinstance(value, dict) and value and chance.random() < 0.7:
        name = chance.choice(list(value))
        match chance.randrange(4):
            case 0:
                return {k: v for k, v in value.items() if k != name}
            case 1:
                return {**value, chance.choice(("a", "b", "x9", "", "new")): chance.choice(OTHERS)}
            case _:
                return {**value, name: _changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        match chance.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, chance.choice([*OTHERS, value[at]])]
            case _:
                return [*value[:at], _changed(value[at], chance), *value[at + 1 :]]
    if isinstance(value, str) and chance.random() < 0.5:
        at = chance.randrange(len(value) + 1)
        return (
            value[:at] + chance.choice(("", "a", "7", "\n", " ", '"', "\u0663")) + value[at + 1 :]
        )
    return chance.choice(OTHERS)


def _escaped(text: str, chance: random.Random) -> str:
    """Return JSON with one letter of a string written as an escape."""
    places = [m.start() for m in re.finditer(r'(?<=[\w"])[A-Za-z0-9 ](?=[^{}\[\]]*")', text)]
    if not places:
        return text
    at = chance.choice(places)
    return f"{text[:at]}\\u{ord(text[at]):04x}{text[at + 1 :]}"


def _digits(text: str, chance: random.Random) -> str:
    places = [match.start() for match in re.finditer(r"[0-9]", text)]
    if not places:
        return text + " " * chance.randrange(1, 12)
    at = chance.choice(places)
    return text[:at] + chance.choice(("0", "9", "12", "", "1e2", ".5", "-", "0.0")) + text[at + 1 :]


def _twice(value: dict[str, Any], chance: random.Random) -> str:
    name = chance.choice(list(value))
    again = "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in name)
    members = json.dumps(value, ensure_ascii=False)[:-1]
    other = json.dumps(chance.choice(OTHERS))
    return f"{members}, {json.dumps(chance.choice((name, None)) or again)}: {other}}}".replace(
        "\\\\u", "\\u"
    )
