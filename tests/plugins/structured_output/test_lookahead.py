"""Lookahead in patterns, held against Python's own expressions."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail_grammars.rewriting.automaton import (
    Effort,
    Undecided,
    conditions,
    matches,
    other_texts,
    searched,
    without_looks,
)
from dovetail_grammars.rewriting.pipeline import rewritten
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import follows, small_vocabulary
from support.samples import sample_of
from support.schema_sampling import compiled_or_refusal

TEXTS = ["".join(letters) for size in range(6) for letters in itertools.product("ab", repeat=size)]
HOST = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
ZOD: dict[str, tuple[str, list[str], list[str]]] = {
    "pydantic's decimal": (
        r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
        ["0", "-1.5", "+.5", "007", "1."],
        ["", "-", "+.", ".", "1.2.3", "a"],
    ),
    "a beginning after another": (r"^(?=^a)(?!^ab)\w{2}$", ["aa", "ac"], ["ab", "ba", "a"]),
    "hostname": (
        rf"^(?=.{{1,253}}\.?$){HOST}(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{{0,61}}[0-9a-zA-Z])?)*\.?$",
        ["a", "a.b.", "a" * 63 + ".com", ".".join(["a"] * 127), ".".join(["a" * 62] * 4)],
        ["", "-a", "a..b", "a" * 64, ".".join(["a"] * 128)],
    ),
    "domain": (
        rf"^(?=.{{1,253}}$)({HOST}\.)+[a-zA-Z]{{2,63}}$",
        ["a.bc", ("a" * 61 + ".") * 4 + "dehk", "a." * 125 + "bc"],
        ["a", "a.b", "a." * 126 + "bc", "-a.bc"],
    ),
    "duration": (
        r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
        r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
        ["P3W", "P1Y2M3DT4H5M6.5S", "PT0,1S", "P12D"],
        ["P", "PT", "P1W2D", "P1YT", "PT.5S"],
    ),
    "emoji": (
        r"^(?=[\s\S]*[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3])"
        r"[\p{Extended_Pictographic}\p{Emoji_Component}]+$",
        ["\U0001f600", "7\ufe0f\u20e3", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea"],
        ["", "7", "a", "\U0001f600a"],
    ),
    "email": (
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        ["a@b.cd", "a.b+c@d-e.f.gh", "a" * 200 + "@" + "b" * 200 + ".cd"],
        ["@b.cd", ".a@b.cd", "a..b@c.de", "a@b", "a.@b.cd"],
    ),
    "iban": (
        r"^[A-Z]{2}(?!00|01|99)\d{2}[A-Z0-9]{11,30}$",
        ["DE89370400440532013000"],
        ["DE00370400440532013000", "DE9937040044053"],
    ),
}
OTHERS: dict[str, tuple[str, list[str], list[str]]] = {
    "mail of 254": (
        r"^(?=.{1,254}$)(?=.{1,64}@)[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$",
        ["a" * 64 + "@" + "b" * 185 + ".cde"],
        ["a" * 65 + "@b.cd", "a" * 64 + "@" + "b" * 186 + ".cde"],
    ),
    "bucket": (
        r"^(?!xn--)(?!.*-s3alias$)(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)"
        r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        ["abc", "a" * 63, "a.b-c", "1.2.3"],
        ["ab", "a" * 64, "xn--a", "a-s3alias", "a..b", "1.2.3.4", "-ab"],
    ),
    "password": (
        r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[^\w]).{8,64}$",
        ["aB3!aB3!", "x" * 61 + "B3!"],
        ["aB3!", "aB33aB33", "x" * 62 + "B3!"],
    ),
    "not so long": (r"^(?!.{254,})a+$", ["a" * 253], ["a" * 254]),
    "not within": (r"^(?:(?!--)[a-z-])+$", ["a-b"], ["a--b", ""]),
    "labels": (r"^((?!-)[A-Za-z0-9-]{1,9}\.)+[A-Za-z]{2,6}$", ["a-b.c.de"], ["-a.de", "a.d"]),
    "the end in the middle": (
        r"^P(?!$)(\d+Y|\d+[.,]\d+Y$)?(\d+M)?$",
        ["P1.5Y", "P1Y2M"],
        ["P", "P1.5Y2M"],
    ),
}


def expression(chance: random.Random, depth: int) -> str:
    """Return a random expression over two letters."""
    kind = chance.randrange(9 if depth else 3)
    inner = [expression(chance, depth - 1) for _ in range(2)] if kind > 2 else []
    match kind:
        case 0 | 1 | 2:
            return chance.choice(["a", "b", ".", "[ab]", "a?", "b*"])
        case 3:
            return f"(?:{inner[0]}|{inner[1]})"
        case 4:
            return f"(?:{chance.choice('ab')}{inner[0]}){chance.choice(['*', '+', '?', '{1,2}'])}"
        case 5:
            return f"(?={inner[0]}{chance.choice(['', '$'])})"
        case 6:
            return f"(?!{inner[0]}{chance.choice(['', '$'])})"
    return "".join(inner)


def test_random_lookahead_agrees_with_the_standard_library() -> None:
    chance, num_read, num_looking = random.Random(0), 0, 0
    num_tried = sample_of(400, 60)
    for _ in range(num_tried):
        pattern = chance.choice(["^{}$", "{}", "^{}", "{}$"]).format(expression(chance, 3))
        try:
            node = searched(pattern)
            plain = without_looks(node, Effort())
            others = other_texts(node, Effort())
        except Undecided:
            continue
        num_read += 1
        num_looking += "(?=" in pattern or "(?!" in pattern
        for text in TEXTS:
            is_found = re.search(pattern, text) is not None
            assert matches(node, text, Effort()) is is_found, (pattern, text)
            assert matches(plain, text, Effort()) is is_found, (pattern, text)
            is_other = others is not None and matches(others, text, Effort())
            assert is_other is not is_found, (pattern, text)
    assert num_read > 0.8 * num_tried and num_looking > 0.37 * num_tried


@pytest.mark.parametrize("name", [*ZOD, *OTHERS])
def test_patterns_of_libraries_are_taken_at_full_length(name: str) -> None:
    pattern, right, wrong = (ZOD | OTHERS)[name]
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    backend = plugin(plugin.Options(), small_vocabulary())
    begun_s = time.process_time()
    found = compiled_or_refusal(backend, {"type": "string", "pattern": pattern})
    assert not isinstance(found, str), found
    assert time.process_time() - begun_s < 2
    for text in [*right, *wrong]:
        given = json.dumps(text, ensure_ascii=False).encode()
        is_taken = follows(found.matcher(), small_vocabulary(), given)
        assert is_taken is (text in right), text


@pytest.mark.parametrize("pattern", [r"^(?:(?=a)|b)*$", r"^a(?<!b)$", r"^a\bb$", r"^(?:(?=a))+$"])
def test_what_is_no_lookahead_of_ours_is_refused_with_its_place(pattern: str) -> None:
    schema: Any = {"properties": {"a": {"type": "string", "pattern": pattern}}}
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    backend = plugin(plugin.Options(), small_vocabulary())
    assert isinstance(compiled_or_refusal(backend, schema), str)


def test_conditions_stay_apart_where_one_pattern_would_be_too_long() -> None:
    made = rewritten({"type": "string", "pattern": OTHERS["mail of 254"][0]})
    assert len(made["allOf"]) == 3
    assert len(conditions(searched(r"^(?!a)(?=b)[ab]*$"), Effort())) == 3
    with pytest.raises(InvalidConstraint, match="names takes too much"):
        rewritten({"patternProperties": {OTHERS["mail of 254"][0]: {"type": "null"}}})
