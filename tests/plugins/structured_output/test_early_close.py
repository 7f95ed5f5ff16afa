"""Answers near max_tokens: close_on_length ends them whole; forced tokens change no text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from dovetail import registry
from dovetail.interfaces.data.constraint import Constraint, Grammar, JsonSchema, Regex, concat
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import Selection, StructuredOutputSpec
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.structured_output import (
    AnswerConstraint,
    CompiledConstraint,
    InvalidConstraint,
    StructuredOutputBackend,
)
from dovetail.structured_output.artifacts import compiled, packed
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.mask_processor import ConstraintProcessor
from dovetail_grammars.early_close import EarlyClose
from dovetail_grammars.text_grammars import text_grammar
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer, allowed, small_vocabulary
from support.inside import backends_of
from support.schema_judge import Judge
from support.schema_keywords import node, pairs_of, placed

pytest.importorskip("dovetail_plugins")

VOCABULARY = small_vocabulary()
EOS = VOCABULARY.eos_ids[0]
DEEP = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {f"m{n}": {"type": "number"} for n in range(8)},
                "required": [f"m{n}" for n in range(8)],
            },
        },
        "note": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["name", "lines", "note"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "first name": {"enum": ["Ada", "Grace"]},
        "is_old": {"type": "boolean"},
        "years": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}},
    },
    "required": ["first name", "is_old", "years"],
    "additionalProperties": False,
}


@cache
def backend(name: str) -> StructuredOutputBackend:
    """Return a backend over the kit's vocabulary."""
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", name)
    made: StructuredOutputBackend = plugin(plugin.Options(), VOCABULARY)
    return made


def table_of(name: str) -> ConstraintCache:
    """Return a table that has the kit's vocabulary instead of a tokenizer's."""
    nobody = Selection(kind="tokenizer", name="none", target="none")
    spec = StructuredOutputSpec(
        tokenizer=nobody, tokenizer_path="", eos_ids=(EOS,), vocab_size=VOCABULARY.size, backends=()
    )
    table = ConstraintCache(spec)
    table._vocabulary = VOCABULARY
    backends_of(table)[name] = backend(name)
    return table


def answer(
    table: ConstraintCache,
    compiled: CompiledConstraint,
    chance: random.Random,
    *,
    max_tokens: int,
    is_forced: bool = False,
    writes: bytes | None = None,
) -> list[int]:
    """Return what a model at random writes, or one that wants to write a certain text."""
    output_ids: list[int] = []
    rows = ConstraintProcessor(table, VOCABULARY.size)
    params = SamplingParams(constraint=compiled, max_tokens=max_tokens)
    rows.add_row(RowTokens(row=0, params=params, prompt_ids=(), output_ids=output_ids))
    wanderer = Wanderer(VOCABULARY)
    while len(output_ids) < max_tokens and EOS not in output_ids:
        logits = torch.zeros(1, VOCABULARY.size)
        rows.begin([0])
        rows.apply(logits, [(0, 0)])
        may = (logits[0] > -1).numpy()
        assert may.any()
        if writes is None:
            output_ids.append(wanderer._draw(may, chance, is_done=False, is_even=True))
        else:
            rest = writes[len(wanderer.written(output_ids)) :]
            ways = [int(i) for i in may.nonzero()[0] if i != EOS]
            ways = [i for i in ways if rest.startswith(VOCABULARY.tokens[i])]
            assert ways or not rest
            output_ids.append(chance.choice(ways) if rest else EOS)
        if is_forced:
            output_ids.extend(rows.forced([0]).get(0, ()))
    rows.remove_row(0)
    return output_ids


def constraint_of(name: str, schema: Any, *, closes: bool) -> CompiledConstraint | None:
    """Return a compiled constraint, None for a schema that is refused."""
    made = backend(name)
    try:
        artifact = packed(compiled(made, JsonSchema(schema)))
    except InvalidConstraint:
        return None
    return AnswerConstraint(backend=name, key=repr(schema), artifact=artifact, closes=closes)


PATCH = """
start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?
hunk: "*** Add File: " filename LF add_line+
    | "*** Delete File: " filename LF
    | "*** Update File: " filename LF ("*** Move to: " filename LF)? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change: (("@@" | "@@ " /(.+)/) LF | ("+" | "-" | " ") /(.*)/ LF)+ ("*** End of File" LF)?
%import common.LF
"""
NOT_JSON: dict[str, tuple[Constraint, str]] = {
    "patch": (Grammar(PATCH, "lark"), r"\*\*\* Begin Patch\n(?s:.*)\n\*\*\* End Patch\n?"),
    "patch in JSON": (
        concat('{"input": "', Grammar(text_grammar("lark", PATCH).in_json, "gbnf"), '"}'),
        r'\{"input": "\*\*\* Begin Patch\\n.*\\n\*\*\* End Patch(\\n)?"\}',
    ),
    "words": (Regex("[a-z ]+ END"), "[a-z ]+ END"),
    "pairs": (Regex("([0-9]-)+END"), "([0-9]-)+END"),
    "nested": (
        Grammar('start: v\nv: "<" [v ("/" v)*] ">" | /[a-z]{1,9}/', "lark"),
        "[a-z<>/]+",
    ),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("backend_name", ["guidance", "xgrammar"])
@pytest.mark.parametrize("name", NOT_JSON)
def test_texts_of_other_grammars_are_whole_at_the_limit(name: str, backend_name: str) -> None:
    constraint, pattern = NOT_JSON[name]
    table, made = table_of(backend_name), backend(backend_name)
    artifact = packed(compiled(made, constraint))
    compiled_ = AnswerConstraint(backend=backend_name, key=name, artifact=artifact, closes=True)
    for seed in range(2):
        chance = random.Random(seed)
        most = chance.randrange(60, 200)
        ids = answer(table, compiled_, chance, max_tokens=most, is_forced=seed % 2 == 1)
        text = Wanderer(VOCABULARY).written([i for i in ids if i != EOS])
        assert ids[-1] == EOS, text
        assert re.fullmatch(pattern.encode(), text), text


def test_a_search_leaves_the_answer_where_it_is() -> None:
    made = backend("guidance")
    matcher = made.load(made.compile(NOT_JSON["patch"][0])).matcher()
    close = EarlyClose(VOCABULARY)
    for token_id in VOCABULARY.encode("*** Begin Patch\n*** Update File: a\n+b") or ():
        assert matcher.accept(token_id)
    before = allowed(matcher, VOCABULARY)
    path = close.path(matcher, 40)
    assert path is not None
    assert Wanderer(VOCABULARY).written(path) == b"\n*** End Patch"
    assert close.path(matcher, len(path)) == path
    assert close.path(matcher, len(path) - 1) is None
    assert (allowed(matcher, VOCABULARY) == before).all()


def test_a_search_tries_each_word_where_few_may_follow() -> None:
    words = [b"***", b" D", b" Delete", b" Add", b" A", b" End", b" Update", b" Patch", b" File"]
    vocabulary = replace(
        VOCABULARY,
        tokens=[*VOCABULARY.tokens, *words],
        size=VOCABULARY.size + len(words),
        encode=lambda text: None,
    )
    plugin = registry.load("structured_output_backend", "guidance")
    made = plugin(plugin.Options(), vocabulary)
    matcher = made.load(made.compile(NOT_JSON["patch"][0])).matcher()
    for token_id in VOCABULARY.encode("*** Begin Patch\n*** Update File: a\n+b") or ():
        assert matcher.accept(token_id)
    path = EarlyClose(vocabulary).path(matcher, 8)
    assert path is not None
    assert b"".join(vocabulary.tokens[i] for i in path) == b"\n*** End Patch"


def schemas(count: int, seed: int) -> Sequence[Any]:
    """Return schemas that the sweep draws too, and two that nest."""
    chance = random.Random(seed)
    words = ("type", "properties", "required", "items", "minItems", "enum", "anyOf", "maxLength")
    pairs = list(pairs_of(frozenset(words)))
    drawn = [
        placed(node(chance.choice(pairs), frozenset(words), chance), chance) for _ in range(count)
    ]
    return [DEEP, PERSON] * (count // 4) + drawn


def closed_share(name: str, count: int, seed: int) -> tuple[int, int, list[Any]]:
    """Return how many answers there were for which a way to the end existed, how many of them came
    to it, and those that did not."""
    chance = random.Random(seed)
    table = table_of(name)
    num_tried, failed = 0, []
    for schema in schemas(count, seed):
        compiled = constraint_of(name, schema, closes=True)
        if compiled is None:
            continue
        most = chance.randrange(4, 160)
        if (
            table.early_close.path(table.prepare(compiled).constraints[0].matcher(), most - 1)
            is None
        ):
            continue  # the shortest answer that is found is longer
        num_tried += 1
        ids = answer(table, compiled, chance, max_tokens=most, is_forced=chance.random() < 0.5)
        text = Wanderer(VOCABULARY).written([i for i in ids if i != EOS])
        if Judge(schema).fault(text) or EOS not in ids:
            failed.append((schema, most, text))
    return num_tried, num_tried - len(failed), failed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guidance", "xgrammar"])
def test_answers_are_whole_at_the_limit(name: str) -> None:
    num_tried, num_whole, failed = closed_share(name, 40, seed=3)
    assert num_tried > 30
    assert failed == []
    assert num_whole == num_tried


def test_without_it_answers_are_cut() -> None:
    table = table_of("guidance")
    compiled = constraint_of("guidance", DEEP, closes=False)
    assert compiled is not None
    cut = [answer(table, compiled, random.Random(n), max_tokens=40)[-1] != EOS for n in range(8)]
    assert any(cut)


def test_forced_tokens_change_no_text() -> None:
    table = table_of("guidance")
    compiled = constraint_of("guidance", PERSON, closes=False)
    assert compiled is not None
    text = b'{"first name":"Grace","is_old":false,"years":[7,81]}'
    for is_forced in (False, True):
        for chance in map(random.Random, range(5)):
            ids = answer(table, compiled, chance, max_tokens=400, writes=text, is_forced=is_forced)
            assert ids[-1] == EOS
            assert Wanderer(VOCABULARY).written(ids[:-1]) == text


def test_forced_tokens_are_what_the_mask_would_leave() -> None:
    made = backend("guidance")
    matcher = made.load(made.compile(JsonSchema(PERSON, ""))).matcher()
    chance = random.Random(0)
    num_forced = 0
    for _ in range(60):
        if matcher.is_complete():
            break
        for token_id in matcher.forced():
            assert allowed(matcher, VOCABULARY)[token_id]
            assert matcher.accept(token_id)
            num_forced += 1
        may = [int(i) for i in allowed(matcher, VOCABULARY).nonzero()[0] if i != EOS]
        if may:
            matcher.accept(chance.choice(may))
    assert num_forced > 5
