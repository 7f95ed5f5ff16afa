"""The drafters that are bundled with the demo model: found by their method, and often right."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.model.demo import DRAFT_TOKENS
from dovetail.errors import ConfigError
from dovetail.interfaces.stats import StepStats
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of

pytest.importorskip("dovetail_plugins")

QUESTIONS = ("What is the capital of France?", "Tell me a story.", "Who wrote Hamlet?")
LEAST_SHARE = 0.5
"""Of the first places of drafts; 0.7 and more were measured."""


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    """Return the answers without drafts."""
    return answers({})[0]


def answers(speculative: dict[str, str]) -> tuple[list[tuple[int, ...]], list[StepStats]]:
    """Return the tokens of the demo model's answers, and the statistics of its steps."""
    with LLM(speculative_config=speculative, max_model_len=512, use_tqdm_on_load=False) as llm:
        stats: list[StepStats] = []
        core = core_of(llm)
        step = core.step

        def watched() -> object:
            output = step()
            stats.extend([output.stats] if output.stats else [])
            return output

        core.step = watched
        params = SamplingParams(temperature=0.0, max_tokens=64)
        chats = [[{"role": "user", "content": text}] for text in QUESTIONS]
        found = [llm.chat(chat, params, use_tqdm=False)[0] for chat in chats]
    return [tuple(one.outputs[0].token_ids) for one in found], stats


@pytest.mark.parametrize("method", DRAFT_TOKENS)
def test_a_bundled_drafter_is_often_right(method: str, plain: list[tuple[int, ...]]) -> None:
    found, stats = answers({"method": method})
    assert found == plain
    drafted = sum(one.drafted_at[0] for one in stats if one.drafted_at)
    accepted = sum(one.accepted_at[0] for one in stats if one.accepted_at)
    assert drafted > 5
    assert accepted / drafted > LEAST_SHARE


def test_another_model_has_none(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "LlamaForCausalLM")
    asked = {"speculative_config": {"method": "eagle"}}
    with pytest.raises(ConfigError, match=r"none is named.*draft_model, eagle"):
        resolve(Config.from_fields({"model": str(tmp_path), **asked}))


def test_drafting_pauses_in_a_crowd_unless_said_otherwise() -> None:
    def pause_above(**keys: object) -> int | None:
        asked = {"method": "eagle", **keys}
        drafts = resolve(Config.from_fields({"speculative_config": asked})).drafting
        assert drafts is not None
        return drafts.pause_above_requests

    assert pause_above() == 16
    assert pause_above(disable_by_batch_size=7) == 7


def test_bundled_weights_are_kept_in_8_bits_unless_said_otherwise() -> None:
    def quantization(**keys: object) -> str:
        asked = {"method": "draft_model", **keys}
        fields = {"speculative_config": asked, "device": "cpu"}
        drafts = resolve(Config.from_fields(fields)).run.drafts
        assert drafts is not None
        return drafts.quantization.name

    assert quantization() == "int8"
    assert quantization(quantization="none") == "none"
