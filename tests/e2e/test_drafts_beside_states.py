"""Drafts beside states change no answer: what a wrong draft did to a state is taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.testing.tiny_models import write_tiny_checkpoint
from support.drafts import KNOWN, Engine, assert_same, params, prompts, write_known

FEW: dict[str, dict[str, int]] = {
    "Mamba2ForCausalLM": {"num_gpu_blocks_override": 14},
    "MambaForCausalLM": {"num_gpu_blocks_override": 14},
    "Lfm2ForCausalLM": {"num_gpu_blocks_override": 30},
    "Qwen3NextForCausalLM": {"num_gpu_blocks_override": 22},
}
"""Families, and room so small that requests are preempted."""


@pytest.mark.parametrize("is_crowded", [False, True], ids=["roomy", "crowded"])
@pytest.mark.parametrize("is_ahead", [False, True], ids=["in_turn", "one_ahead"])
@pytest.mark.parametrize("family", FEW)
def test_the_same_with_and_without(
    family: str, is_ahead: bool, is_crowded: bool, tmp_path: Path
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", family)
    engine = Engine(folder)
    with engine.llm:
        plain = engine.answers(params(), prompts())
    known = write_known(tmp_path / "known.json", plain)
    asked: dict[str, Any] = {"method": KNOWN, "num_speculative_tokens": 6, "path": str(known)}
    room = FEW[family] if is_crowded else {}
    engine = Engine(folder, speculative_config=asked, async_scheduling=is_ahead, **room)
    with engine.llm:
        for _ in range(2):  # the second time prompts come from the prefix cache
            assert_same(engine.answers(params(), prompts()), plain)
        engine.llm._engine.core.check_idle()
    assert engine.count("accepted_tokens") > 0
    assert engine.count("draft_tokens") > engine.count("accepted_tokens")
    assert (engine.count("preemptions") > 0) == is_crowded
    assert is_crowded or engine.count("prefix_hit_tokens") > 0


@pytest.mark.parametrize("family", ["Mamba2ForCausalLM", "Qwen3NextForCausalLM"])
def test_words_that_were_said_before(family: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", family)
    engine = Engine(folder)
    with engine.llm:
        plain = engine.answers(params(), prompts())
    engine = Engine(folder, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    with engine.llm:
        assert_same(engine.answers(params(), prompts()), plain)
    assert engine.count("accepted_tokens") > 0


def test_a_draft_model_beside_states(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "Qwen3NextForCausalLM")
    small = write_tiny_checkpoint(tmp_path / "small", "LlamaForCausalLM")
    engine = Engine(folder)
    with engine.llm:
        plain = engine.answers(params(), prompts())
    asked = {"method": "draft_model", "model": str(small), "num_speculative_tokens": 3}
    engine = Engine(folder, speculative_config=asked)
    with engine.llm:
        assert_same(engine.answers(params(), prompts()), plain)
    assert engine.count("draft_tokens") > 0


def test_a_pipeline_refuses_drafts_beside_states(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "Mamba2ForCausalLM")
    asked = {"method": "ngram", "num_speculative_tokens": 3}
    fields = {"model": str(folder), "speculative_config": asked, "pipeline_parallel_size": 2}
    with pytest.raises(ConfigError, match="which drafts come true"):
        resolve(Config.from_fields(fields))
