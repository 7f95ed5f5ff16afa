"""Adapters that were trained with a rope scaling of their own (LongLoRA) compute what PEFT and
transformers compute with that scaling, beside rows without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
from dovetail.errors import ConfigError, RequestError
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import engine_of
from support.peft_adapters import Answer, asked, load, made, wanted

TOLERANCE, TRAINED, NUM_TOKENS = 1e-4, 128, 4
FACTORS = {"own": None, "two": 2.0, "four": 4.0}
"""The rope scaling that each adapter was trained with; None: the model's own."""
SMALL = {
    "dtype": "float32", "enable_lora": True, "max_loras": 3, "max_logprobs": -1,
    "use_tqdm_on_load": False, "num_gpu_blocks_override": 100, "block_size": 16,
}  # fmt: skip


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


LONG, SHORT = prompt(200), prompt(30)
"""One that is longer than what the model was trained for, and one that is not."""


def told(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen3ForCausalLM"])
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, dict[str, Answer]]]:
    """Return a folder of a model and its adapters, and what PEFT tells with each of a prompt."""
    import peft
    import transformers

    root = tmp_path_factory.mktemp("long")
    folder = write_tiny_checkpoint(root / "base", request.param)
    load_model = transformers.AutoModelForCausalLM.from_pretrained
    found: dict[str, dict[str, Answer]] = {}
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj"])
    for seed, (name, factor) in enumerate(FACTORS.items()):
        config = transformers.AutoConfig.from_pretrained(folder)
        if factor is not None:
            rope = {"rope_type": "linear", "factor": factor, "rope_theta": 10000.0}
            config.rope_parameters = {**(config.rope_parameters or {}), **rope}
        base = load_model(folder, config=config, dtype=torch.float32).eval()
        model = made(base, lora, root / name, seed=seed)
        prompts = {"short": SHORT} if factor is None else {"short": SHORT, "long": LONG}
        found[name] = {key: wanted(model, ids, NUM_TOKENS) for key, ids in prompts.items()}
        if factor is None:
            found[""] = {"short": wanted(base, SHORT, NUM_TOKENS)}
    told(root / "two", context_length=TRAINED * 2 - 40)
    told(root / "four", rope_scaling={"type": "linear", "factor": 4})
    return root, found


@pytest.fixture(scope="module", params=["whole", "in parts"])
def opened(request: pytest.FixtureRequest, tiny: Any) -> Iterator[Any]:
    parts = {"max_num_batched_tokens": 40} if request.param == "in parts" else {}
    flags = SMALL | parts | {"long_lora_scaling_factors": ["2.0", "4,1.5"], "max_model_len": 400}
    with LLM(str(tiny[0] / "base"), **flags) as llm:
        load(engine_of(llm), *(tiny[0] / name for name in FACTORS))
        yield engine_of(llm)


def check(opened: Any, tiny: Any, batch: list[tuple[str, str]]) -> None:
    prompts = {"short": SHORT, "long": LONG}
    ours = asked(opened, [(name, prompts[key]) for name, key in batch], NUM_TOKENS)
    for answer, (name, key) in zip(ours, batch, strict=True):
        its = tiny[1][name][key]
        assert (answer.logprobs - its.logprobs).abs().max() <= TOLERANCE, (name, key)
        assert answer.token_ids == its.token_ids


def test_a_row_decides_its_table(opened: Any, tiny: Any) -> None:
    every = [(name, key) for name, answers in tiny[1].items() for key in answers]
    for one in every:
        check(opened, tiny, [one])
    check(opened, tiny, every)
    apart = [tiny[1][name]["short"].logprobs for name in ("two", "four")]
    assert (apart[0] - apart[1]).abs().max() > 0.01


def test_a_scaling_that_the_server_does_not_have_is_told(tiny: Any) -> None:
    root = tiny[0]
    with LLM(str(root / "base"), **SMALL, long_lora_scaling_factors=["8"]) as llm:
        for name, factor in (("two", "2"), ("four", "4")):
            with pytest.raises(RequestError) as caught:
                llm.load_adapter(name, str(root / name))
            assert f"--long-lora-scaling-factors {factor}" in str(caught.value.fix)
            assert caught.value.where == str(root / name / "adapter_config.json")


def test_a_model_without_rotation_cannot_have_one(tmp_path: Path) -> None:
    import peft
    import transformers

    folder = write_tiny_checkpoint(tmp_path / "base", "GPT2LMHeadModel")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    made(base, peft.LoraConfig(target_modules=["c_fc"], fan_in_fan_out=True), tmp_path / "lora")
    told(tmp_path / "lora", context_length=256)
    with (
        LLM(str(folder), **SMALL, long_lora_scaling_factors=["2"]) as llm,
        pytest.raises(RequestError, match="which this model cannot have"),
    ):
        llm.load_adapter("lora", str(tmp_path / "lora"))


@pytest.mark.parametrize("words", [["two"], ["0.5"], ["nan"], ["inf"], ["2", "-4"]])
def test_what_is_no_factor(words: list[str], tiny: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(tiny[0] / "base"), **SMALL, long_lora_scaling_factors=words)
    assert caught.value.where == "--long-lora-scaling-factors"


def test_a_model_with_another_scaling(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    folder = write_tiny_checkpoint(tmp_path / "base", "LlamaForCausalLM", rope_parameters=rope)
    with pytest.raises(ConfigError) as caught:
        LLM(str(folder), **SMALL, long_lora_scaling_factors=["2"])
    assert "dynamic" in caught.value.what
