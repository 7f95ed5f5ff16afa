"""Sparse attention through the engine: prompts in chunks, prefix hits, preempted requests.

The tiny models attend to 8 tokens, or to 2 blocks of 16, and their prompts are longer. An indexer
of tokens has 8 heads: of fewer, many scores are zero, and which of equal ones transformers takes is
not said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec import structs

from dovetail import LLM, SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail_testing.tiny.families import FAMILIES as CAUSAL
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support import tiny_glm5_next
from support.inside import core_of, watch_preemptions

TOLERANCE = 1e-4
SPARSE: dict[str, Any] = {"index_topk": 8, "index_n_heads": 8}
SHARING = {**SPARSE, "num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"]}
FAMILIES = {
    **dict.fromkeys(("DeepseekV32ForCausalLM", "AXK2ForCausalLM"), SPARSE),
    **dict.fromkeys(("GlmMoeDsaForCausalLM", "HYV4ForCausalLM"), SHARING),
    "MiniMaxM3VLForCausalLM": {"index_block_size": 16, "index_topk_blocks": 2},
    "Glm5NextForConditionalGeneration": {},
    "Dots3NoteForCausalLM": {},
    "Qwen4ExpForCausalLM": {},
    "DeepseekV4ForCausalLM": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    },
}
BLOCKS = {"Glm5Next": 14, "Qwen4Exp": 18, "DeepseekV4": 26, "Dots3Note": 15}
"""How many make the engine preempt, by model; 11 of the others."""
ENGINE: dict[str, Any] = {
    "max_model_len": 96,
    "block_size": 16,
    "max_num_batched_tokens": 24,
    "max_logprobs": -1,
    "use_tqdm_on_load": False,
}
PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=-1)
_random = torch.Generator().manual_seed(5)
LENGTHS = (50, 37, 6, 61)
PROMPTS = [torch.randint(3, VOCAB_SIZE, (n,), generator=_random).tolist() for n in LENGTHS]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    if request.param not in CAUSAL:
        return tiny_glm5_next.write(path)
    return write_tiny_checkpoint(path, request.param, **FAMILIES[request.param])


def worst(path: Path, prompts: list[list[int]], results: list[GenerationResult]) -> float:
    """Return the largest difference of any drawn token's logprobs from transformers'."""
    config = transformers.AutoConfig.from_pretrained(path)
    is_causal = config.architectures[0] in CAUSAL
    auto = (
        transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForImageTextToText
    )
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    found = 0.0
    for prompt, result in zip(prompts, results, strict=True):
        drawn = result.outputs[0]
        assert drawn.logprobs is not None
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *drawn.token_ids]])
            logits = model(input_ids=ids).logits[0]
        wanted = logits[len(prompt) - 1 : -1].log_softmax(-1)
        for own, row in zip(drawn.logprobs, wanted, strict=True):
            told = torch.empty(VOCAB_SIZE)
            told[list(own.top_ids)] = torch.tensor(own.top_logprobs)
            found = max(found, float((told - row).abs().max()))
    return found


def test_chunks_batches_and_prefix_hits(checkpoint: Path) -> None:
    with LLM(str(checkpoint), num_gpu_blocks_override=64, **ENGINE) as llm:
        first = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        again = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert worst(checkpoint, PROMPTS, first) <= TOLERANCE
    assert worst(checkpoint, PROMPTS, again) <= TOLERANCE
    assert [r.num_cached_tokens for r in again] == [48, 32, 0, 48]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("swap_space", [0, 0.01], ids=["recompute", "swap"])
def test_preemption(checkpoint: Path, swap_space: float) -> None:
    flags: dict[str, Any] = {
        "num_gpu_blocks_override": BLOCKS.get(checkpoint.name.partition("For")[0], 11),
        "swap_space": swap_space,
        "plugin_options": {"scheduler": {"growth_blocks": 0}},
    }
    with LLM(str(checkpoint), **ENGINE, **flags) as llm:
        core = core_of(llm)
        preempted = watch_preemptions(core)
        results = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert preempted
        assert (core.cache.num_swaps > 0) == (swap_space > 0)
        core.check_idle()
    assert worst(checkpoint, PROMPTS, results) <= TOLERANCE


@pytest.mark.parametrize("name", ["DeepseekV4ForCausalLM", "Dots3NoteForCausalLM"])
def test_drafts_that_are_taken_back(name: str, tmp_path: Path) -> None:
    """Drafts that come true and others; some end entries, which later tokens then write again."""
    path = write_tiny_checkpoint(tmp_path, name, **FAMILIES[name])
    drafts = {"method": "suffix", "num_speculative_tokens": 3, "suffix_decoding_min_token_prob": 0}
    flags: dict[str, Any] = {"num_gpu_blocks_override": 64, **ENGINE}
    results: list[GenerationResult] = []
    with LLM(str(path), speculative_config=drafts, **flags) as llm:
        for banned in (None, None, 6, 9, 13):  # the answer, once more, and without a token of it
            bias = {} if banned is None else {results[0].outputs[0].token_ids[banned]: -100.0}
            params = structs.replace(PARAMS, logit_bias=bias)
            results += llm.generate(PROMPTS[:1], params, use_tqdm=False)
    assert worst(path, PROMPTS[:1] * len(results), results) <= TOLERANCE
    timed = [result.metrics for result in results if result.metrics is not None]
    accepted = sum(one.num_accepted_tokens for one in timed)
    assert 0 < accepted < sum(one.num_draft_tokens for one in timed)


def test_sleep_keeps_nothing_and_wakes(checkpoint: Path) -> None:
    with LLM(str(checkpoint), num_gpu_blocks_override=64, enable_sleep_mode=True, **ENGINE) as llm:
        before = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        llm.sleep(level=1)
        llm.wake_up()
        after = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [r.outputs[0].token_ids for r in before] == [r.outputs[0].token_ids for r in after]
