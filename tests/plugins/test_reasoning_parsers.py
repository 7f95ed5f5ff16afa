"""Reasoning parsers beyond their contract: where thinking begins after real prompts."""

from __future__ import annotations

import random

import pytest

from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.testing.cuts import parse_in_pieces
from dovetail_plugins.reasoning_parsers.deepseek_r1 import DeepseekR1
from dovetail_plugins.reasoning_parsers.qwen3 import Qwen3

NUM_CUTS = 2000


@pytest.mark.parametrize(
    ("tail", "qwen3", "deepseek_r1"),
    [
        ("<|im_start|>assistant\n", False, True),
        ("<|im_start|>assistant\n<think>\n", True, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False, False),
        ("<think>old</think>answer<|im_end|><|im_start|>assistant\n", False, True),
    ],
)
def test_where_thinking_begins(tail: str, qwen3: bool, deepseek_r1: bool) -> None:
    assert Qwen3(None).starts_inside(tail) is qwen3
    assert DeepseekR1(None).starts_inside(tail) is deepseek_r1


@pytest.mark.parametrize("parser", [Qwen3(None), DeepseekR1(None)])
@pytest.mark.parametrize("starts_inside", [False, True])
def test_random_cuts_of_random_texts(parser: ReasoningParser, starts_inside: bool) -> None:
    chance = random.Random(1)
    parts = ("<think>", "</think>", "\n\n", "why ", "because", "<", "</thin", "☃")
    for _ in range(NUM_CUTS // 10):
        text = "".join(chance.choices(parts, k=chance.randint(1, 7)))

        def parsed(pieces: list[str]) -> object:
            return parse_in_pieces(pieces, reasoning=parser.markers, starts_inside=starts_inside)

        whole = parsed([text])
        for _ in range(10):
            places = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 12)))
            pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
            assert parsed(pieces) == whole, pieces


def test_templates_tell_the_parsers_apart() -> None:
    deepseek = "<｜Assistant｜>{{ content.split('</think>')[-1] }}"
    assert not DeepseekR1.why_not(deepseek)
    assert DeepseekR1.why_not("<|im_start|>{{ '</think>' }}")
    assert not Qwen3.why_not("<|im_start|>{{ '</think>' }}")
    assert Qwen3.why_not("<|im_start|>")
    assert DeepseekR1.auto_rank > Qwen3.auto_rank
