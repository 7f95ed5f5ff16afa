"""Adapters as PEFT makes them whose start took something out of the model's weights: refused by
name, and taken once PEFT has saved them as plain LoRA."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
from dovetail.errors import RequestError
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import engine_of
from support.peft_adapters import asked, load, peft_warns, wanted

peft = pytest.importorskip("peft")

TOLERANCE, NUM_TOKENS = 1e-4, 4
PROMPT = torch.randint(3, VOCAB_SIZE, (19,), generator=torch.Generator().manual_seed(5)).tolist()
STARTS = ("pissa", "pissa_niter_4", "olora", "corda")


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("base") / "base", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def engine(base_folder: Path) -> Iterator[Any]:
    flags: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 16, "dtype": "float32"}
    with LLM(
        str(base_folder), max_model_len=64, max_logprobs=-1, use_tqdm_on_load=False, **flags
    ) as llm:
        yield engine_of(llm)


def trained(base: Any, start: str) -> tuple[Any, Any]:
    """Return the model that PEFT begins this way, before and after it has learned something."""
    from peft.tuners.lora.config import CordaConfig

    more: dict[str, Any] = {}
    if start == "corda":
        more["corda_config"] = CordaConfig(corda_method="kpm")
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=start, **more
    )
    own = copy.deepcopy(base)
    with peft_warns(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if start == "corda":
            from peft.tuners.lora.corda import preprocess_corda

            preprocess_corda(own, config, run_model=lambda: own(torch.tensor([PROMPT])))
        model = peft.get_peft_model(own, config).eval()
    before = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return before, model


@pytest.mark.parametrize("start", STARTS)
def test_refused_by_name_and_taken_as_plain_lora(
    start: str, base_folder: Path, engine: Any, tmp_path: Path
) -> None:
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    before, model = trained(base.eval(), start)
    plain = f"plain_{start}"
    with peft_warns():
        model.save_pretrained(tmp_path / "as_it_is")
        before.peft_config["default"].init_lora_weights = True
        before.save_pretrained(tmp_path / "start")
        model.save_pretrained(
            tmp_path / plain, path_initial_model_for_weight_conversion=str(tmp_path / "start")
        )
    with pytest.raises(RequestError, match=rf"init_lora_weights: {start}: "):
        load(engine, tmp_path / "as_it_is")
    load(engine, tmp_path / plain)
    (found,) = asked(engine, [(plain, PROMPT)], NUM_TOKENS)
    theirs = wanted(model, PROMPT, NUM_TOKENS)
    assert (found.logprobs - theirs.logprobs).abs().max() < TOLERANCE
    assert found.token_ids == theirs.token_ids
