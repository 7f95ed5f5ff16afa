"""Drafts beside states change no answer: what a wrong draft did to a state is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.errors import ConfigError
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.drafts import KNOWN, Engine, assert_same, params, prompts, write_known
from support.inside import core_of

FEW: dict[str, dict[str, int]] = {
    "Mamba2ForCausalLM": {"num_gpu_blocks_override": 14},
    "MambaForCausalLM": {"num_gpu_blocks_override": 14},
    "Lfm2ForCausalLM": {"num_gpu_blocks_override": 30},
    "Qwen3NextForCausalLM": {"num_gpu_blocks_override": 22},
    "Qwen4ExpForCausalLM": {"num_gpu_blocks_override": 30},
    "Inkling2ForCausalLM": {"num_gpu_blocks_override": 52},
}
"""Families, and room so small that requests are preempted."""
IN_TURN, ONE_AHEAD = False, True
ROOMY, CROWDED = False, True
WAYS = {
    "Mamba2ForCausalLM": ((IN_TURN, ROOMY), (ONE_AHEAD, CROWDED)),
    "MambaForCausalLM": ((IN_TURN, CROWDED), (ONE_AHEAD, ROOMY)),
    "Lfm2ForCausalLM": ((IN_TURN, CROWDED), (ONE_AHEAD, ROOMY)),
    "Qwen3NextForCausalLM": ((IN_TURN, ROOMY), (ONE_AHEAD, CROWDED)),
    "Qwen4ExpForCausalLM": ((IN_TURN, CROWDED), (ONE_AHEAD, ROOMY)),
    "Inkling2ForCausalLM": ((IN_TURN, ROOMY), (ONE_AHEAD, CROWDED)),
}
"""Each way by itself in every family, and each pair of them in at least two."""


@dataclass(frozen=True)
class Family:
    """A model with states, what it says without drafts, and a file of that."""

    name: str
    folder: Path
    plain: list[GenerationResult]
    known: Path


@pytest.fixture(scope="module", params=FEW)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Family]:
    home = tmp_path_factory.mktemp("states")
    folder = write_tiny_checkpoint(home / "model", request.param)
    engine = Engine(folder)
    with engine.llm:
        plain = engine.answers(params(), prompts())
    yield Family(request.param, folder, plain, write_known(home / "known.json", plain))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", [0, 1], ids=["in_turn", "one_ahead"])
def test_the_same_with_and_without(family: Family, way: int) -> None:
    is_ahead, is_crowded = WAYS[family.name][way]
    path = str(family.known)
    asked: dict[str, Any] = {"method": KNOWN, "num_speculative_tokens": 6, "path": path}
    room = FEW[family.name] if is_crowded else {}
    engine = Engine(family.folder, speculative_config=asked, async_scheduling=is_ahead, **room)
    with engine.llm:
        for _ in range(2):  # the second time prompts come from the prefix cache
            assert_same(engine.answers(params(), prompts()), family.plain)
        core_of(engine.llm).check_idle()
    assert engine.count("accepted_tokens") > 0
    assert engine.count("draft_tokens") > engine.count("accepted_tokens")
    assert (engine.count("preemptions") > 0) == is_crowded
    assert is_crowded or engine.count("prefix_hit_tokens") > 0


@pytest.mark.parametrize("family", ["Mamba2ForCausalLM", "Qwen3NextForCausalLM"], indirect=True)
def test_words_that_were_said_before(family: Family) -> None:
    asked = {"method": "ngram", "num_speculative_tokens": 3}
    engine = Engine(family.folder, speculative_config=asked)
    with engine.llm:
        assert_same(engine.answers(params(), prompts()), family.plain)
    assert engine.count("accepted_tokens") > 0


@pytest.mark.parametrize("family", ["Qwen3NextForCausalLM"], indirect=True)
def test_a_draft_model_beside_states(family: Family, tmp_path: Path) -> None:
    small = write_tiny_checkpoint(tmp_path / "small", "LlamaForCausalLM")
    asked = {"method": "draft_model", "model": str(small), "num_speculative_tokens": 3}
    engine = Engine(family.folder, speculative_config=asked)
    with engine.llm:
        assert_same(engine.answers(params(), prompts()), family.plain)
    assert engine.count("draft_tokens") > 0


def test_a_pipeline_refuses_drafts_beside_states(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "Mamba2ForCausalLM")
    asked = {"method": "ngram", "num_speculative_tokens": 3}
    fields = {"model": str(folder), "speculative_config": asked, "pipeline_parallel_size": 2}
    with pytest.raises(ConfigError, match="which drafts come true"):
        resolve(Config.from_fields(fields))
