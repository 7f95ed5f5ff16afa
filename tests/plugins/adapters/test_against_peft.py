"""Every sort of adapter computes what PEFT computes: alone, and beside others in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import engine_of
from support.peft_adapters import Answer, asked, counting, load, made, peft_warns, wanted

TOLERANCE = 1e-4
NUM_TOKENS = 6
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
FEED_FORWARD = ["gate_proj", "up_proj", "down_proj"]
LINEAR = [*ATTENTION, *FEED_FORWARD]
LORA: dict[str, dict[str, Any]] = {
    "few": {"r": 8, "target_modules": ["q_proj", "v_proj"]},
    "pattern": {"r": 4, "target_modules": r".*\.(1\.self_attn\.k|1\.mlp\.up)_proj"},
    "ranks": {
        "r": 4,
        "target_modules": LINEAR,
        "rank_pattern": {"q_proj": 2, "up_proj": 7},
        "alpha_pattern": {"v_proj": 3, r"layers\.1\.mlp\.up_proj": 5},
    },
    "rslora": {"r": 16, "use_rslora": True, "target_modules": LINEAR},
    "dora": {"r": 4, "use_dora": True, "target_modules": LINEAR},
    "dora_some": {"r": 4, "use_dora": True, "target_modules": ["q_proj", "v_proj", "up_proj"]},
    "bias_some": {"r": 4, "bias": "lora_only", "target_modules": ["q_proj", "v_proj"]},
    "tables": {"r": 4, "target_modules": [*LINEAR, "embed_tokens", "lm_head"]},
    "saved": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    "lora_bias": {"r": 4, "lora_bias": True, "target_modules": LINEAR},
    "bias": {"r": 4, "bias": "lora_only", "target_modules": ATTENTION},
}
IA3: dict[str, dict[str, Any]] = {
    "ia3": {
        "target_modules": ["k_proj", "v_proj", "down_proj"],
        "feedforward_modules": ["down_proj"],
    },
    "ia3_end": {"target_modules": r".*\.(k|down)_proj", "feedforward_modules": ["n_proj"]},
    "ia3_all": {"target_modules": LINEAR, "feedforward_modules": FEED_FORWARD},
}
NAMES = (*LORA, *IA3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A tiny model, adapters to it, and what transformers and PEFT tell of the prompts. `merged`
    are those models with their adapters merged into the weights."""

    folder: Path
    adapters: Path
    wanted: dict[str, list[Answer]]
    merged: dict[str, Answer]

    def paths(self, *names: str) -> list[Path]:
        return [self.adapters / name for name in names]


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


PROMPTS = [prompt(23), prompt(9)]


def config_of(name: str) -> Any:
    import peft

    if name in IA3:
        return peft.IA3Config(task_type="CAUSAL_LM", **IA3[name])
    return peft.LoraConfig(lora_alpha=16, **LORA[name])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Made:
    import transformers

    root = tmp_path_factory.mktemp("adapters")
    folder = write_tiny_checkpoint(root / "base", "LlamaForCausalLM", attention_bias=True)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = {"": [wanted(base, ids, NUM_TOKENS) for ids in PROMPTS]}
    merged = {}
    for seed, name in enumerate(NAMES):
        model = made(base, config_of(name), root / name, seed=seed)
        found[name] = [wanted(model, ids, NUM_TOKENS) for ids in PROMPTS]
        if "bias" not in name:  # PEFT does not merge a LoRA's own bias
            with peft_warns():
                merged[name] = wanted(model.merge_and_unload(), PROMPTS[0], 1)
    return Made(folder=folder, adapters=root, wanted=found, merged=merged)


@contextmanager
def engine(tiny: Made, **flags: Any) -> Iterator[Any]:
    """Open an engine that computes prompts in parts."""
    given = {
        "dtype": "float32",
        "enable_lora": True,
        "max_loras": 8,
        "max_cpu_loras": 12,
        "enable_lora_bias": True,
        "max_logprobs": -1,
        "block_size": 8,
        "max_num_batched_tokens": 40,
        "max_num_seqs": 16,
        "max_model_len": 64,
        "num_gpu_blocks_override": 200,
        "use_tqdm_on_load": False,
    }
    with LLM(str(tiny.folder), **(given | flags)) as llm:
        yield engine_of(llm)


@pytest.fixture(scope="module")
def loaded(tiny: Made) -> Iterator[Any]:
    with engine(tiny) as opened:
        load(opened, *tiny.paths(*NAMES))
        yield opened


def check(ours: Answer, theirs: Answer) -> None:
    assert (ours.logprobs - theirs.logprobs).abs().max() <= TOLERANCE
    assert ours.token_ids == theirs.token_ids


def check_all(opened: Any, tiny: Made, names: tuple[str, ...]) -> list[Answer]:
    """Compare all prompts of these adapters in one batch."""
    batch = [(name, ids) for ids in PROMPTS for name in names]
    found = asked(opened, batch, NUM_TOKENS)
    theirs = [tiny.wanted[name][i] for i in range(len(PROMPTS)) for name in names]
    for ours, its in zip(found, theirs, strict=True):
        check(ours, its)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_alone(loaded: Any, tiny: Made, name: str) -> None:
    (ours,) = asked(loaded, [(name, PROMPTS[0])], NUM_TOKENS)
    check(ours, tiny.wanted[name][0])
    without = tiny.wanted[""][0]
    assert (ours.logprobs - without.logprobs).abs().max() > 0.01, "the adapter changes too little"
    if name in tiny.merged:
        its = tiny.merged[name]
        assert (ours.logprobs - its.logprobs).abs().max() <= TOLERANCE


def test_eight_adapters_beside_rows_without(loaded: Any, tiny: Made) -> None:
    check_all(loaded, tiny, ("", *NAMES[:4], "", *NAMES[4:8]))


def test_more_adapters_than_slots(loaded: Any, tiny: Made) -> None:
    check_all(loaded, tiny, ("", *NAMES))


def test_low_rank_steps_are_recorded_beside_rows_without(loaded: Any, tiny: Made) -> None:
    for _ in range(3):
        check_all(loaded, tiny, ("few", "", "ranks"))


def test_a_cached_prefix_is_the_adapters_own(tiny: Made) -> None:
    with engine(tiny, max_loras=2) as opened:
        load(opened, *tiny.paths("few", "rslora"))

        def cached(name: str) -> int:
            (ours,) = asked_plain(opened, name)
            assert ours[0] == tiny.wanted[name][0].token_ids
            return ours[1]

        assert [cached(name) for name in ("few", "rslora", "", "few", "rslora", "")] == [
            0, 0, 0, 16, 16, 16,
        ]  # fmt: skip


def asked_plain(opened: Any, name: str) -> list[tuple[list[int], int]]:
    """Return the greedy answer to the first prompt and how much of it was cached; logprobs of the
    prompt would have all of it computed."""
    from dovetail.interfaces.data.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    opened.submit(opened.prepare(PROMPTS[0], params, adapter=name))
    tokens: list[int] = []
    num_cached = 0
    while opened.has_work:
        for _, output in opened.step().outputs:
            tokens += [token for delta in output.deltas for token in delta.token_ids]
            num_cached = max(num_cached, output.num_cached_tokens)
    return [(tokens, num_cached)]


WAYS: dict[str, dict[str, Any]] = {
    "preemption": {
        "block_size": 1,
        "num_gpu_blocks_override": 74,
        "max_num_batched_tokens": 80,
        "enable_prefix_caching": False,
    },
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "a draft model": {"speculative_config": {"method": "draft_model"}},
    "async steps": {"async_scheduling": True},
    "two ranks": {"tensor_parallel_size": 2},
    "half batches": {
        "tensor_parallel_size": 2,
        "communicator": "gloo",
        "enable_dbo": True,
        "dbo_decode_token_threshold": 2,
        "dbo_prefill_token_threshold": 2,
    },
    "two stages": {"pipeline_parallel_size": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_of_running(tiny: Made, way: str) -> None:
    fields = dict(WAYS[way])
    if way == "a draft model":  # the model without adapters
        asked = {"model": str(tiny.folder), "num_speculative_tokens": 3}
        fields["speculative_config"] = {**fields["speculative_config"], **asked}
    with engine(tiny, **fields) as opened:
        counted = counting(opened)
        load(opened, *tiny.paths(*NAMES))
        check_all(opened, tiny, ("", *NAMES[:5]))
        check_all(opened, tiny, ("", *NAMES[5:]))
        assert counted["preemptions"] > 0 or way != "preemption"
        assert counted["draft_tokens"] > 0 or "draft" not in way
        assert counted["divided_steps"] > 0 or way != "half batches"


@pytest.mark.parametrize("level", [1, 2])
def test_after_sleep_adapters_are_as_before(tiny: Made, level: int) -> None:
    with engine(tiny, enable_sleep_mode=True) as opened:
        load(opened, *tiny.paths("dora", "tables"))
        check_all(opened, tiny, ("", "dora", "tables"))
        opened.sleep(level)
        opened.wake_up(())
        check_all(opened, tiny, ("", "dora", "tables"))
