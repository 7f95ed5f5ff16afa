"""Heads on hidden states: what they guess is what their published formulas say, and the answers are
those without them, whatever becomes of the rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.engine.parts.draft_price import DraftPrice
from dovetail.engine.parts.drafting import _PricedDraftLength
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of, drafting_of

pytest.importorskip("dovetail_plugins")

from dovetail_plugins.models import mimo
from support import draft_heads, masked_heads, own_layers
from support.draft_heads import Head, Target
from support.tiny_media import QWEN_ROPE

PROMPTS = ["one two three one two", "abc", "the dog and the dog and the dog and so on " * 2]
LENGTH = 4
MADE: dict[str, Callable[[Path], Head]] = {
    "eagle": draft_heads.eagle,
    "eagle-nested": partial(draft_heads.eagle, nested=True),
    "eagle-own-head": partial(draft_heads.eagle, has_own_head=True),
    "eagle3": draft_heads.eagle3,
    "eagle3-whole": partial(draft_heads.eagle3, whole=True),
    "eagle3-speculator": draft_heads.speculator,
    "eagle3-latents": partial(draft_heads.speculator, latent=True),
    "medusa": draft_heads.medusa,
    "medusa-renamed": partial(draft_heads.medusa, renamed=True),
    "dflash": masked_heads.dflash,
    "dflash-window": partial(masked_heads.dflash, slides=True),
    "dspark": masked_heads.dspark,
    "dspark-gated": partial(masked_heads.dspark, gated=True),
    "mlp": draft_heads.mlp_speculator,
    "mlp-tied": partial(draft_heads.mlp_speculator, tied=True),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
MIXED = (
    GREEDY,
    SamplingParams(seed=7, temperature=1.0, max_tokens=24, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, repetition_penalty=1.3),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"num_hidden_layers": 6}
    return write_tiny_checkpoint(
        tmp_path_factory.mktemp("heads") / "model", "LlamaForCausalLM", **sizes
    )


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    return Target(folder)


def made(folder: Path, head: Head | None = None, **fields: Any) -> LLM:
    flags: dict[str, Any] = {
        "num_gpu_blocks_override": 200,
        "max_model_len": 96,
        "max_num_batched_tokens": 32,
        "block_size": 8,
        "dtype": "float32",
        "use_tqdm_on_load": False,
    }
    if head is not None:
        flags["speculative_config"] = {
            "method": f"dovetail_plugins.drafters.{head.method}",
            **({} if head.folder == folder else {"model": str(head.folder)}),
            "num_speculative_tokens": LENGTH,
            **fields.pop("speculative_config", {}),
        }
    return LLM(model=str(folder), **(flags | fields))


def drafts_of(llm: LLM) -> list[tuple[list[int], list[int]]]:
    """Return a list that will hold what is known of a request and what is guessed to follow."""
    found: list[tuple[list[int], list[int]]] = []
    drafting: Any = drafting_of(core_of(llm))
    brought = drafting._brought

    def watched(request: Any, *given: Any) -> tuple[int, ...]:
        drafts: tuple[int, ...] = brought(request, *given)
        if request.draft_ids:
            found.append((list(request.token_ids), list(request.draft_ids)))
        return drafts

    drafting._brought = watched
    return found


@pytest.fixture
def never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests draft all the time: one that pauses begins anew, and guesses by less. Verify
    what is unlikely, too: all that heads say that learned nothing."""
    monkeypatch.setattr("dovetail.runner.drafts.chain.LEFT_OUT", 1)
    monkeypatch.setattr(_PricedDraftLength, "_pause", lambda *given: None)
    monkeypatch.setattr(DraftPrice, "pays", lambda *given: True)


@pytest.mark.usefixtures("never_pauses")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", MADE)
def test_guesses_what_the_formulas_say(
    name: str, folder: Path, target: Target, tmp_path: Path
) -> None:
    head = MADE[name](tmp_path / "head")
    with made(folder, head) as llm:
        found = drafts_of(llm)
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert len(found) > 20
    for token_ids, drafts in found:
        assert drafts == head.guess(target, token_ids, len(drafts))


def test_a_published_tree_is_named_where_it_is_not_followed(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = draft_heads.medusa(tmp_path / "head")
    config = json.loads((head.folder / "config.json").read_text())
    config["medusa_choices"] = [[0], [0, 0], [1], [0, 1]]
    (head.folder / "config.json").write_text(json.dumps(config))
    asked = {"method": "medusa", "model": str(head.folder), "num_speculative_tokens": 2}
    fields = {"model": str(folder), "speculative_config": asked}
    with caplog.at_level(logging.INFO):
        resolve(Config.from_fields(fields))
    assert "medusa_choices" in caplog.text and "a tree of 4 drafts" in caplog.text


FEW_BLOCKS = {"num_gpu_blocks_override": 20, "swap_space": 0.01}
MIXED_PARAMS = [wish for wish in MIXED for _ in PROMPTS]


@pytest.fixture(scope="module")
def mixed_answers(folder: Path) -> list[list[int]]:
    """Return what is drawn without drafts."""
    with made(folder, **FEW_BLOCKS) as llm:
        drawn = llm.generate(PROMPTS * 3, MIXED_PARAMS, use_tqdm=False)
    return [result.outputs[0].token_ids for result in drawn]


@pytest.mark.parametrize("name", ["eagle", "eagle3", "dspark", "medusa", "mlp"])
def test_the_same_answers_short_of_cache(
    name: str, folder: Path, mixed_answers: list[list[int]], tmp_path: Path
) -> None:
    head = MADE[name](tmp_path / "head")
    with made(folder, head, **FEW_BLOCKS) as llm:
        found = llm.generate(PROMPTS * 3, MIXED_PARAMS, use_tqdm=False)
        core_of(llm).check_idle()
    assert [result.outputs[0].token_ids for result in found] == mixed_answers


@pytest.mark.parametrize("name", ["eagle", "dflash", "medusa"])
def test_the_same_answers_where_rows_end_beside_others(
    name: str, folder: Path, mixed_answers: list[list[int]], tmp_path: Path
) -> None:
    """Nothing is drafted behind a request's end, and states of what it drew last are not kept."""
    whole = mixed_answers[: len(PROMPTS)]
    asked = [(PROMPTS[i], answer[end]) for i, answer in enumerate(whole) for end in range(2, 18)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, stop_token_ids=[end])
        for _, end in asked
    ]
    with made(folder, MADE[name](tmp_path / "head")) as llm:
        found = llm.generate([prompt for prompt, _ in asked], params, use_tqdm=False)
        core_of(llm).check_idle()
    wanted = [answer[: answer.index(answer[end]) + 1] for answer in whole for end in range(2, 18)]
    assert [result.outputs[0].token_ids for result in found] == wanted


@pytest.mark.usefixtures("never_pauses")
def test_layers_that_come_with_the_model(tmp_path: Path) -> None:
    sizes = {"tie_word_embeddings": False}
    source = write_tiny_checkpoint(tmp_path / "source", "Qwen2ForCausalLM", **sizes)
    head = draft_heads.mtp(tmp_path / "head", source)
    model = f"{mimo.__name__}:MiMoForCausalLM"
    asked = {"hf_overrides": {"architectures": [model]}, "num_gpu_blocks_override": 40}
    with made(head.folder, **asked) as llm:
        wanted = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    target = Target(source)
    with made(head.folder, head, **asked) as llm:
        drafts = drafts_of(llm)
        found = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [r.outputs[0].token_ids for r in found] == [r.outputs[0].token_ids for r in wanted]
    assert len(drafts) > 20
    for token_ids, guessed in drafts:
        assert guessed == head.guess(target, token_ids, len(guessed))


@pytest.mark.usefixtures("never_pauses")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("family", [*own_layers.OWN_LAYERS, "GlmMoeDsaForCausalLM, picking"])
def test_a_layer_of_the_model_family(family: str, tmp_path: Path) -> None:
    """Experts in it, DeepSeek's latents, an indexer, blocks of one part, and beside states."""
    family, _, picks = family.partition(", ")
    sizes = {"index_topk": 8, "index_n_heads": 8} if picks else {}
    head = own_layers.own_layer(tmp_path, family, **sizes)
    with made(head.folder) as llm:
        wanted = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    target = Target(head.folder)
    with made(head.folder, head) as llm:
        drafts = drafts_of(llm)
        found = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [r.outputs[0].token_ids for r in found] == [r.outputs[0].token_ids for r in wanted]
    assert len(drafts) > 20
    for token_ids, guessed in drafts:
        assert guessed == head.guess(target, token_ids, len(guessed))


@pytest.mark.usefixtures("never_pauses")
def test_a_layer_of_a_model_that_takes_pictures(tmp_path: Path) -> None:
    head = own_layers.own_layer(
        tmp_path,
        "Qwen3_5ForCausalLM",
        rope_parameters={**QWEN_ROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.5},
    )
    target, published = Target(head.folder), own_layers.with_pictures(tmp_path, head)
    with made(published.folder, published) as llm:
        drafts = drafts_of(llm)
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert len(drafts) > 20
    for token_ids, guessed in drafts:
        assert guessed == head.guess(target, token_ids, len(guessed))


@pytest.mark.usefixtures("never_pauses")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["Glm4MoeForCausalLM", "Qwen3_5ForCausalLM"])
def test_a_layer_stored_in_float8(family: str, tmp_path: Path) -> None:
    """What joins it to the model is stored in full precision, which no list says."""
    head = own_layers.own_layer(tmp_path, family)
    guessed = []
    for folder in own_layers.in_float8(tmp_path, head):
        with made(folder, replace(head, folder=folder)) as llm:
            drafts = drafts_of(llm)
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        guessed.append({tuple(known): found for known, found in drafts})
    stored, plain = guessed
    shared = stored.keys() & plain.keys()
    assert len(shared) > 20
    assert sum(stored[key] == plain[key] for key in shared) > 0.9 * len(shared)


@pytest.mark.usefixtures("never_pauses")
@pytest.mark.parametrize("ordered", [False, True])
def test_an_assistant_reads_what_the_model_cached(ordered: bool, tmp_path: Path) -> None:
    """Of layers that see all and of layers with a window, some of which share their caches."""
    folder, head = own_layers.assistant(tmp_path, ordered=ordered)
    with made(folder) as llm:
        wanted = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    target = Target(folder)
    with made(folder, head) as llm:
        drafts = drafts_of(llm)
        found = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [r.outputs[0].token_ids for r in found] == [r.outputs[0].token_ids for r in wanted]
    assert len(drafts) > 20
    for token_ids, guessed in drafts:
        assert guessed == head.guess(target, token_ids, len(guessed))


HALVES = {
    "enable_dbo": True,
    "dbo_decode_token_threshold": 2,
    "dbo_prefill_token_threshold": 2,
    "communicator": "gloo",
}


UNDIVIDED = {"speculative_config": {"draft_tensor_parallel_size": 1}}


@pytest.mark.usefixtures("never_pauses")
@pytest.mark.parametrize(
    ("name", "flags"),
    [("eagle3", UNDIVIDED), ("eagle3", HALVES), ("dspark", {})],
    ids=["undivided", "half batches", "masked"],
)
def test_two_ranks(
    name: str, flags: dict[str, Any], folder: Path, target: Target, tmp_path: Path
) -> None:
    """Beside a divided model a head guesses what it does alone: whole on each rank, or divided and
    of the states of half batches."""
    head = MADE[name](tmp_path / "head")
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", **flags}
    with made(folder, head, **ranks) as llm:
        drafts = drafts_of(llm)
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert len(drafts) > 20
    for token_ids, guessed in drafts:
        assert guessed == head.guess(target, token_ids, len(guessed))
