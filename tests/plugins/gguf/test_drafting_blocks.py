"""Blocks of GGUF files that draft further tokens: they guess what those of the checkpoint guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.parts.draft_price import DraftPrice
from dovetail.engine.parts.drafting import _PricedDraftLength
from support import own_layers
from support.draft_heads import Target
from support.gguf_files import write_gguf
from support.inside import core_of, drafting_of

pytest.importorskip("gguf")

PROMPTS = ["one two three one two", "abc", "the dog and the dog and the dog and so on " * 2]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
ARCHITECTURES = {
    "Glm4MoeForCausalLM": "glm4moe",
    "DeepseekV3ForCausalLM": "deepseek2",
    "GlmMoeDsaForCausalLM": "glm-dsa",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
}


@pytest.fixture
def never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests draft all the time, and verify what is unlikely, too."""
    monkeypatch.setattr("dovetail.runner.drafts.chain.LEFT_OUT", 1)
    monkeypatch.setattr(_PricedDraftLength, "_pause", lambda *given: None)
    monkeypatch.setattr(DraftPrice, "pays", lambda *given: True)


def served(file: Path, **flags: Any) -> LLM:
    return LLM(
        model=str(file),
        num_gpu_blocks_override=200,
        max_model_len=96,
        max_num_batched_tokens=32,
        block_size=8,
        dtype="float32",
        use_tqdm_on_load=False,
        **flags,
    )


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("never_pauses")
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_they_guess_what_the_layer_guesses(family: str, kind: str, tmp_path: Path) -> None:
    head = own_layers.own_layer(tmp_path, family)
    file, name = tmp_path / "model.gguf", ARCHITECTURES[family]
    settings = {f"{name}.nextn_predict_layers": 1}
    write_gguf(head.folder, file, lambda tensor: kind, settings=settings, num_blocks=3)
    with served(file) as llm:
        wanted = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    with served(file, speculative_config={"method": "mtp", "num_speculative_tokens": 4}) as llm:
        drafts: list[tuple[list[int], list[int]]] = []
        drafting: Any = drafting_of(core_of(llm))
        brought = drafting._brought

        def watched(request: Any, *given: Any) -> tuple[int, ...]:
            guessed: tuple[int, ...] = brought(request, *given)
            if request.draft_ids:
                drafts.append((list(request.token_ids), list(request.draft_ids)))
            return guessed

        drafting._brought = watched
        found = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [r.outputs[0].token_ids for r in found] == [r.outputs[0].token_ids for r in wanted]
    assert len(drafts) > 20
    if kind == "F32":
        target = Target(head.folder)
        for token_ids, guessed in drafts:
            assert guessed == head.guess(target, token_ids, len(guessed))
