"""Reasoning parsers beyond their contract: where thinking begins in prompts, random cuts."""

from __future__ import annotations

import random

import pytest

from dovetail import registry
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.generate.tools.tool_choice import known_markers
from dovetail_plugins.reasoning_parsers.deepseek_r1 import DeepseekR1
from dovetail_plugins.reasoning_parsers.qwen3 import Qwen3
from dovetail_testing.text_splits import parse_in_pieces, random_cuts
from support.parser_fuzz import examples
from support.samples import sample_of

NUM_CUTS = sample_of(400, 60)


def made(name: str) -> ReasoningParser:
    """Return the parser of this name."""
    plugin = registry.load("reasoning_parser", name)
    parser: ReasoningParser = plugin(plugin.Options())
    return parser


CHATML = "<|im_start|>assistant\n"
DEEPSEEK = "<｜User｜>hi<｜Assistant｜>"


@pytest.mark.parametrize(
    ("name", "tail", "is_inside"),
    [
        ("qwen3", CHATML, False),
        ("qwen3", f"{CHATML}<think>\n", True),
        ("qwen3", f"{CHATML}<think>\n\n</think>\n\n", False),
        ("qwen3", f"<think>old</think>answer<|im_end|>{CHATML}", False),
        ("deepseek_r1", DEEPSEEK, True),
        ("deepseek_r1", f"{DEEPSEEK}<think>\n", True),
        ("deepseek_r1", f"{DEEPSEEK}</think>old<｜end▁of▁sentence｜>{DEEPSEEK}", True),
        ("deepseek_v3", f"{DEEPSEEK}<think>", True),
        ("deepseek_v3", f"{DEEPSEEK}</think>", False),
        ("deepseek_v3", f"{DEEPSEEK}</think>old<｜end▁of▁sentence｜>{DEEPSEEK}<think>", True),
        ("glm45", "<|assistant|>\n<think></think>", False),
        ("glm45", "<|assistant|>\n<think></think>\nold<|user|>\nhi<|assistant|>", False),
        ("hunyuan_a13b", "hi<|extra_0|><think>\n\n</think>\n", False),
        ("kimi_k2", "<think></think>old<|im_end|><|im_assistant|>assistant<|im_middle|>", False),
        ("minimax_m2", "]~b]ai\n<think>\n", True),
        ("minimax_m2", "<think>\nold\n</think>\n\nsaid[e~[\n]~b]ai\n", True),
        ("mistral", "[THINK]thoughts[/THINK][/SYSTEM_PROMPT][INST]hi[/INST]", False),
        ("olmo3", f"{CHATML}<think>", True),
        ("openai_gptoss", "<|start|>assistant", False),
        ("openai_gptoss", "<|channel|>analysis<|message|>old<|end|><|start|>assistant", False),
        ("openai_gptoss", "<|start|>assistant<|channel|>analysis<|message|>", True),
        ("seed_oss", "<seed:bos>assistant\n", False),
        ("seed_oss", "<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>", True),
        ("step3", "<|BOT|>assistant\n<think>\n", True),
    ],
)
def test_where_thinking_begins(name: str, tail: str, is_inside: bool) -> None:
    assert made(name).starts_inside(tail) is is_inside


def beside(name: str) -> str | None:
    """Return the name of the family's tool parser."""
    wanted = {"openai_gptoss": "openai", "deepseek_r1": "deepseek_v3", "qwen3": "hermes"}
    wanted_name = wanted.get(name, name)
    return wanted_name if wanted_name in registry.names("tool_parser") else None


def pairs() -> list[str]:
    """Return the names of parsers, one of those that share a class and their tool parser's."""
    targets = {entry.name: entry.target for entry in registry.entries("tool_parser")}
    found = {
        (entry.target, targets.get(beside(entry.name) or "")): entry.name
        for entry in registry.entries("reasoning_parser")
    }
    return sorted(found.values())


@pytest.mark.parametrize("word", ["think", "think_fast", "think_faster"])
def test_k2_horizon_closes_the_tag_that_the_prompt_opened(word: str) -> None:
    parser, prompt = made("k2_horizon"), f"</ifm|think>so<|ifm|im_start|>assistant\n<ifm|{word}>\n"
    assert parser.starts_inside(prompt)
    assert not parser.starts_inside(f"{prompt}</ifm|{word}>")
    markers = known_markers(parser, prompt)
    got = parse_in_pieces([f"why</ifm|{word}>2"], reasoning=markers, starts_inside=True)
    assert (got.reasoning, got.content) == ("why", "2")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", pairs())
@pytest.mark.parametrize("starts_inside", [False, True])
def test_random_cuts_of_random_texts(name: str, starts_inside: bool) -> None:
    """Alone, and beside the tool parser of the same name if there is one."""
    parser, chance = made(name), random.Random(1)
    tool_parser = tool_parser_beside(name)
    markers = parser.markers
    parts = [
        markers.start,
        markers.end,
        markers.end[:-1],
        *examples(parser.layout),
        "\n\n",
        "why ",
        "<",
        "☃",
    ]
    parts += [sample.text for sample in tool_parser.samples] if tool_parser else []
    for number in range(NUM_CUTS // 10):
        text = "".join(chance.choices(parts, k=chance.randint(1, 7)))

        def parsed(pieces: list[str]) -> object:
            return parse_in_pieces(
                pieces,
                tool_parser=tool_parser,
                reasoning=markers,
                starts_inside=starts_inside,
                layout=parser.layout,
            )

        whole = parsed([text])
        assert all(parsed(p) == whole for p in random_cuts(text, seed=number, num=10)), text


def tool_parser_beside(name: str) -> ToolParser | None:
    """Return the family's tool parser."""
    wanted_name = beside(name)
    if wanted_name is None:
        return None
    plugin = registry.load("tool_parser", wanted_name)
    parser: ToolParser = plugin(plugin.Options())
    return parser


def test_templates_tell_the_parsers_apart() -> None:
    deepseek = "<｜Assistant｜>{{ content.split('</think>')[-1] }}"
    assert not DeepseekR1.why_not(deepseek)
    assert DeepseekR1.why_not("<|im_start|>{{ '</think>' }}")
    assert not Qwen3.why_not("<|im_start|>{{ '</think>' }}")
    assert Qwen3.why_not("<|im_start|>")
    assert DeepseekR1.auto_rank > Qwen3.auto_rank
