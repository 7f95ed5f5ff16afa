"""Every model family through the whole engine gives transformers' distribution at every token:
in a crowded batch with chunked prompts, after preemptions, and after a prefix hit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.engine.core import StepOutput
from dovetail_testing.tiny.families import FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of
from support.older_transformers import skip_where_older

TOLERANCE = 1e-4
NEW_TOKENS = 20
NATIVE = list(FAMILIES)
WINDOWED = {
    "MistralForCausalLM": 22,
    "Gemma2ForCausalLM": 40,
    "Gemma3ForCausalLM": 40,
    "Gemma3nForCausalLM": 40,
    "Gemma4ForCausalLM": 40,
    "Olmo3ForCausalLM": 40,
    "Cohere2ForCausalLM": 40,
    "Exaone4ForCausalLM": 40,
    "Starcoder2ForCausalLM": 22,
}
FEW_BLOCKS = {
    **WINDOWED,
    **dict.fromkeys(("MambaForCausalLM", "FalconMambaForCausalLM", "Mamba2ForCausalLM"), 10),
    **dict.fromkeys(("RwkvForCausalLM", "xLSTMForCausalLM"), 10),
    **dict.fromkeys(("BambaForCausalLM", "GraniteMoeHybridForCausalLM", "JambaForCausalLM"), 12),
    **dict.fromkeys(("FalconH1ForCausalLM", "NemotronHForCausalLM"), 14),
    "ZayaForCausalLM": 60,
}
"""KV blocks few enough to preempt, where some layers keep only a window or a state, or a state
beside keys and values; elsewhere 28 are."""
EVERYTHING = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=-1)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    lengths = (5, 19, 33, 11, 26, 40, 8, 30)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def transformers_model(path: Path) -> Any:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def worst_difference(reference: Any, result: GenerationResult) -> float:
    """Return the largest difference of any logprob at any drawn position."""
    (completion,) = result.outputs
    tokens = list(result.prompt_token_ids) + list(completion.token_ids)
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens])).logits[0]
    wanted = logits[len(result.prompt_token_ids) - 1 : -1].float().log_softmax(-1)
    assert completion.logprobs is not None and len(completion.logprobs) == NEW_TOKENS
    ours = torch.full_like(wanted, float("nan"))
    for position, entry in enumerate(completion.logprobs):
        ours[position, list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
    return float((ours - wanted).abs().max())


def count_preemptions(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by each step's preemptions."""
    core = core_of(llm)
    step, counts = core.step, []

    def counted() -> StepOutput:
        output = step()
        counts.append(output.stats.preemptions if output.stats else 0)
        return output

    monkeypatch.setattr(core, "step", counted)
    return counts


@pytest.mark.e2e
@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", NATIVE)
def test_distribution_is_that_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_where_older(name)
    path = write_tiny_checkpoint(
        tmp_path / "model", name, **({"sliding_window": 32} if name in WINDOWED else {})
    )
    reference = transformers_model(path)
    flags = {
        "max_model_len": 64,
        "max_logprobs": -1,
        "max_num_batched_tokens": 24,
        "block_size": 8,
        "plugin_options": {"scheduler": {"growth_blocks": 0}},
        "num_gpu_blocks_override": FEW_BLOCKS.get(name, 28),
        "dtype": "float32",
        "use_tqdm_on_load": False,
    }
    with LLM(model=str(path), **flags) as llm:
        preemptions = count_preemptions(llm, monkeypatch)
        crowded = llm.generate(prompts(), EVERYTHING, use_tqdm=False)
        llm.generate([prompts()[5]], EVERYTHING, use_tqdm=False)
        again = llm.generate([prompts()[5]], EVERYTHING, use_tqdm=False)
    assert sum(preemptions) > 0, "the cache was meant to be too small for all at once"
    assert again[0].num_cached_tokens >= 8
    for result in [*crowded, *again]:
        assert result.error is None
        difference = worst_difference(reference, result)
        assert difference <= TOLERANCE, f"{difference} after {len(result.prompt_token_ids)} tokens"
