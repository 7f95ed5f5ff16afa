"""Vectors before a prompt equal PEFT's, beside rows with LoRA and rows without; nobody is told of
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dovetail import LLM
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import engine_of
from support.peft_adapters import Answer, asked, counting, load, made, wanted
from support.written_lora import write_lora

TOLERANCE = 1e-4
NUM_TOKENS, NUM_VIRTUAL = 6, 7
PROMPT = torch.randint(3, VOCAB_SIZE, (19,), generator=torch.Generator().manual_seed(2)).tolist()
FLAGS: dict[str, Any] = {
    "enable_lora": True, "max_loras": 4, "max_logprobs": -1, "dtype": "float32", "block_size": 8,
    "max_num_batched_tokens": 20, "max_model_len": 64, "use_tqdm_on_load": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prompts")
    write_tiny_checkpoint(root / "base", "LlamaForCausalLM")
    write_lora(root / "lora")
    return root


@pytest.fixture(scope="module")
def theirs(folders: Path) -> dict[str, Answer]:
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(folders / "base", dtype=torch.float32)
    common: Any = {"task_type": "CAUSAL_LM", "num_virtual_tokens": NUM_VIRTUAL}
    configs = {
        "tuned": peft.PromptTuningConfig(**common),
        "encoded": peft.PromptEncoderConfig(encoder_hidden_size=24, **common),
    }
    found = {"": wanted(base.eval(), PROMPT, NUM_TOKENS)}
    for seed, (name, config) in enumerate(configs.items()):
        model = made(base, config, folders / name, seed=seed)
        found[name] = wanted(model, PROMPT, NUM_TOKENS)
    return found


def opened(folders: Path, **flags: Any) -> LLM:
    """Return an engine with room for vectors before prompts."""
    spec = resolve(Config.from_fields({"model": str(folders / "base"), **FLAGS, **flags}))
    assert spec.run.adapters is not None
    adapters = msgspec.structs.replace(
        spec.run.adapters, max_prompt_slots=2, max_prompt_tokens=NUM_VIRTUAL
    )
    run = msgspec.structs.replace(spec.run, adapters=adapters)
    return LLM.from_spec(msgspec.structs.replace(spec, run=run))


@pytest.fixture(scope="module")
def engine(folders: Path, theirs: dict[str, Answer]) -> Iterator[Any]:
    with opened(folders) as llm:
        load(engine_of(llm), folders / "tuned", folders / "encoded", folders / "lora")
        yield engine_of(llm)


def check(ours: Answer, its: Answer) -> None:
    assert ours.logprobs.shape == its.logprobs.shape
    assert (ours.logprobs - its.logprobs).abs().max() <= TOLERANCE
    assert ours.token_ids == its.token_ids


def test_equal_to_peft_beside_others(engine: Any, theirs: dict[str, Answer]) -> None:
    (lora,) = asked(engine, [("lora", PROMPT)], NUM_TOKENS)
    names = ("", "tuned", "lora", "encoded", "tuned")
    found = asked(engine, [(name, PROMPT) for name in names], NUM_TOKENS)
    for name, ours in zip(names, found, strict=True):
        check(ours, lora if name == "lora" else theirs[name])
    assert (theirs["tuned"].logprobs - theirs[""].logprobs).abs().max() > 0.05


def test_they_count_for_the_context_and_not_for_the_user(engine: Any) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    told = {}
    for name in ("", "tuned"):
        for again in range(2):
            prepared = engine.prepare(PROMPT, params, adapter=name)
            key, tokens, cached = engine.submit(prepared), 0, 0
            while engine.has_work:
                for found, output in engine.step().outputs:
                    assert found == key and len(output.prompt_token_ids) == len(PROMPT)
                    tokens += sum(len(delta.token_ids) for delta in output.deltas)
                    cached = max(cached, output.num_cached_tokens)
            told[name, again] = (tokens, cached)
    room = 64 - len(PROMPT)
    assert [told["", again][0] for again in (0, 1)] == [room, room]
    assert [told["tuned", again][0] for again in (0, 1)] == [room - NUM_VIRTUAL] * 2
    assert told["", 1][1] == 16 and told["tuned", 1][1] == 24 - NUM_VIRTUAL


def test_a_prompt_that_does_not_fit_beside_them_is_refused(engine: Any) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1)
    key = engine.submit(engine.prepare([5] * 60, params, adapter="tuned"))
    errors = []
    while engine.has_work:
        errors += engine.step().errors
    assert [(found, "the adapter puts 7 vectors" in str(error)) for found, error in errors] == [
        (key, True)
    ]


WAYS: dict[str, dict[str, Any]] = {
    "preemption": {"num_gpu_blocks_override": 82, "block_size": 1, "max_num_batched_tokens": 90},
    "async steps": {"async_scheduling": True},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_of_running(folders: Path, theirs: dict[str, Answer], way: str) -> None:
    with opened(folders, **WAYS[way]) as llm:
        counted = counting(engine_of(llm))
        load(engine_of(llm), folders / "tuned", folders / "encoded")
        names = ("", "tuned", "encoded", "tuned")
        found = asked(engine_of(llm), [(name, PROMPT) for name in names], NUM_TOKENS)
        for name, ours in zip(names, found, strict=True):
            check(ours, theirs[name])
        assert counted["preemptions"] > 0 or way != "preemption"


def test_without_room_they_are_refused(folders: Path, theirs: dict[str, Answer]) -> None:
    with (
        LLM(str(folders / "base"), **FLAGS) as llm,
        pytest.raises(RequestError, match="there are 7, and 0 is the most"),
    ):
        load(engine_of(llm), folders / "tuned")
