"""Thinking before a constraint: its end marker is seen in one token or several, and may be
forced."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.interfaces.data.constraint import Regex
from dovetail.interfaces.data.sampling_params import SamplingParams, ThinkingBudget
from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.structured_output import StructuredOutputBackend, Vocabulary
from dovetail.server.generate.tools.structured_outputs import after_reasoning
from dovetail.structured_output.cache import CachedConstraint
from dovetail.structured_output.mask_processor import _Row
from dovetail.structured_output.trigger import Trigger
from dovetail.structured_output.vocabulary import vocabulary_of
from dovetail_plugins.logits_processors.thinking_budget import ReasoningBudget
from dovetail_testing.contract import skipping_unavailable

pytest.importorskip("dovetail_plugins")

MARKERS = Markers(start="<think>", end="</think>")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """Return the demo model's: <think> and </think> are one token each, but not special."""
    tokenizer = registry.load("tokenizer", "hf")
    made = tokenizer(tokenizer.Options(), str(DEMO_PATH))
    facts = made.facts()
    return vocabulary_of(made, (facts.eos_token_id,), facts.vocab_size)


@pytest.mark.parametrize("name", registry.names("structured_output_backend"))
@pytest.mark.parametrize("is_spelled", [False, True])
def test_a_constraint_after_reasoning(name: str, is_spelled: bool, vocabulary: Vocabulary) -> None:
    with skipping_unavailable():
        plugin: type[StructuredOutputBackend] = registry.load("structured_output_backend", name)
    if "free_text" not in plugin.capabilities:
        pytest.skip("it holds no free text")
    backend = plugin(plugin.Options(), vocabulary)
    constraint = after_reasoning(Regex("(yes|no)"), MARKERS)
    matcher = backend.load(backend.compile(constraint)).matcher()
    ids = {text: i for i, text in enumerate(vocabulary.tokens) if text}

    def spelled(text: bytes) -> list[int]:
        return [ids[bytes([byte])] for byte in text]

    start, end = b"<think>", b"</think>"
    thought = [*spelled(b"so <b> </thin"), *(spelled(end) if is_spelled else [ids[end]])]
    for token_id in [ids[start], *thought, *spelled(b"\nyes")]:
        assert matcher.accept(token_id), vocabulary.tokens[token_id]
    assert matcher.is_complete()


PIECES = [
    b"<th",
    b"ink>",
    b"</",
    b"think",
    b">",
    b"a",
    b" b",
    b"\xc3",
    b"\xa4",
    b"</think>",
    b"<think>",
]


def budget_vocabulary() -> Vocabulary:
    return Vocabulary(
        tokens=PIECES, special={}, eos_ids=(), special_ids=frozenset(), size=len(PIECES)
    )


def written(
    start: str, end_ids: Sequence[int], num_tokens: int, wanted: Sequence[int]
) -> tuple[bytes, list[int]]:
    """Return what a model writes that wants these tokens, held to a budget."""
    budget = ThinkingBudget(tokens=num_tokens, start=start, end="</think>", end_ids=tuple(end_ids))
    params = SamplingParams(thinking=budget)
    assert ReasoningBudget.wants(params)
    assert not ReasoningBudget.wants(SamplingParams())
    rows = ReasoningBudget(None, len(PIECES))
    rows.set_up(SimpleNamespace(vocabulary=budget_vocabulary))  # type: ignore[arg-type]
    output_ids: list[int] = []
    rows.add_row(RowTokens(row=3, params=params, prompt_ids=(), output_ids=output_ids))
    for token_id in wanted:
        logits = torch.zeros(2, len(PIECES))
        logits[1, token_id] = 9.0
        rows.apply(logits, [(1, 3)])
        assert torch.equal(logits[0], torch.zeros(len(PIECES)))
        output_ids.append(int(logits[1].argmax()))
        if len(output_ids) == len(wanted) // 2:  # as after a preemption
            rows.remove_row(3)
            rows.add_row(RowTokens(row=3, params=params, prompt_ids=(), output_ids=output_ids))
    return b"".join(PIECES[i] for i in output_ids), output_ids


@pytest.mark.parametrize("end_ids", [(9,), (2, 3, 4)])
def test_the_end_is_written_when_the_budget_is_used_up(end_ids: tuple[int, ...]) -> None:
    a = [5] * 12
    text, _ = written("", end_ids, 4, a)
    assert text == b"aaaa</think>" + b"a" * (8 - len(end_ids))
    assert written("", end_ids, 0, a)[0].startswith(b"</think>aaa")
    # "<th" "ink>" open it; they are no thought.
    assert written("<think>", end_ids, 3, [0, 1, *a])[0].startswith(b"<think>aaa</think>aa")
    assert written("<think>", end_ids, 3, [10, *a])[0].startswith(b"<think>aaa</think>aa")


def test_an_end_that_the_model_writes_is_enough() -> None:
    for own in ([9], [2, 3, 4]):
        wanted = [5, *own, 5, 5, 5, 5, 5]
        assert written("", (9,), 5, wanted)[1] == wanted


def test_an_answer_without_thinking_is_left_alone() -> None:
    wanted = [5, 5, 10, 5, 5, 5, 5]
    assert written("<think>", (9,), 2, wanted)[1] == wanted


def test_closing_words_come_before_the_end() -> None:
    """The whole of them, however the model would go on, and even where they name the start."""
    for wanted in ([5] * 12, [6, 4, 0, 1] * 3, [9] + [5] * 11):
        text, _ = written("", (6, 5, 10, 9), 3, wanted)
        plain, _ = written("", (9,), 3, wanted)
        thought = plain.partition(b"</think>")[0]
        closing = b" ba<think></think>" if len(thought) > 0 else b"</think>"
        assert text.startswith(thought + closing)
    assert written("", (6, 5, 9), 0, [5] * 6)[0] == b" ba</think>aaa"


def test_an_end_that_was_begun_within_the_budget_is_finished() -> None:
    for size in (1, 2, 3, 4):
        text, _ = written("", (6, 6, 9), size, [5, 2, 3, 4, 5, 5, 5, 5, 5])
        assert text.startswith(b"a b b</think>" if size == 1 else b"a</think>aaaa")
    # What looks like an end and is none takes a few tokens more, and no more than that.
    text, _ = written("", (9,), 2, [5, 2, 2, 2, 2, 2, 2, 2, 2])
    assert text == b"a</</</</</</think></</"


def test_a_character_is_finished_first() -> None:
    assert written("", (9,), 2, [5, 7, 8, 5, 5])[0] == "aä</think>a".encode()


def test_no_more_than_the_budget_for_any_wish() -> None:
    chance = random.Random(0)
    for _ in range(200):
        wanted = [chance.randrange(len(PIECES)) for _ in range(30)]
        text, ids = written("", (9,), 6, wanted)
        assert b"</think>" in text
        assert b"</think>" in b"".join(PIECES[i] for i in ids[: 6 + 4 + 1])


class Exclaimed:
    """A constraint of any text up to "!", and its matcher."""

    num_bytes = 0

    def matcher(self) -> Exclaimed:
        self.is_over = False
        return self

    def accept(self, token_id: int) -> bool:
        self.is_over = token_id == self.end_id
        return True

    def is_complete(self) -> bool:
        return self.is_over

    end_id = -1


@pytest.mark.parametrize("is_spelled", [False, True])
@pytest.mark.parametrize(
    ("starts_in_reasoning", "text", "is_constrained"),
    [
        (False, "<tool_call>", True),
        (False, "<think>a <tool_call>b", False),
        (False, "\n<think>a <tool_call></think>\n", False),
        (False, "<think>a</think>\n<tool_call>", True),
        (False, "x <think><tool_call>", True),
        (False, "<tool_call>a!<think><tool_call>", False),
        (True, "a <tool_call>", False),
        (True, "a <tool_call></think><tool_call>", True),
        (True, "a</think>\n<think><tool_call>", False),
    ],
)
def test_tags_do_not_count_in_thinking(
    starts_in_reasoning: bool,
    text: str,
    is_constrained: bool,
    is_spelled: bool,
    vocabulary: Vocabulary,
) -> None:
    ids = {text: i for i, text in enumerate(vocabulary.tokens) if text}
    constraint = Exclaimed()
    constraint.end_id = ids[b"!"]
    cached = CachedConstraint(
        constraints=[constraint],  # type: ignore[list-item]
        triggers=[Trigger("<tool_call>", vocabulary, may_be_blank=False)],
        repeats=True,
        reasoning_markers=(MARKERS.start.encode(), MARKERS.end.encode()),
        starts_in_reasoning=starts_in_reasoning,
    )
    parts = re.split(r"(</?think>|<tool_call>)", text)
    words = [p for p in parts if p.encode() in ids and not is_spelled and len(p) > 1]
    output: list[int] = []
    for part in parts:
        output += (
            [ids[part.encode()]] if part in words else [ids[bytes([b])] for b in part.encode()]
        )
    params = SamplingParams(max_tokens=500)
    tokens = RowTokens(row=0, params=params, prompt_ids=(), output_ids=np.array(output))
    cache: Any = SimpleNamespace(vocabulary=vocabulary, early_close=None)
    row = _Row(tokens, cached, cache, 1 << 20)
    row.advance()
    assert row.is_constrained is is_constrained
