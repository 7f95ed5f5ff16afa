"""LoRA on models that tell classes, their heads saved whole, equals PEFT's; encoders too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, PoolingParams
from dovetail.engine.client.results.outputs import numbers
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.added_tokens import enlarged, saved
from support.inside import engine_of
from support.peft_adapters import load, made
from support.tiny_configs import tiny_config

TOLERANCE = 1e-4
TARGETS = {"distilbert": ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"]}
PARAMS = PoolingParams(task="classify", is_activated=False)
TYPES = ["bert", "roberta", "distilbert", "modernbert", "mpnet", "llama", "qwen3"]


def base_of(model_type: str, folder: Path) -> Any:
    import transformers

    config = tiny_config(model_type, num_labels=3, pad_token_id=1)
    if model_type not in ("llama", "qwen3"):
        config.is_decoder = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return model


def told_by(
    folder: Path, adapter: Path, batch: Sequence[tuple[str, list[int]]]
) -> list[torch.Tensor]:
    """Return what is told of prompts, each with its adapter's name."""
    flags = {"enable_lora": True, "dtype": "float32", "max_model_len": 64, "runner": "pooling"}
    with LLM(str(folder), use_tqdm_on_load=False, **flags) as llm:
        engine = engine_of(llm)
        load(engine, adapter)
        keys = []
        for name, ids in batch:
            keys.append(engine.submit(engine.prepare_pooled(ids, PARAMS, adapter=name)))
        found = {}
        while engine.has_work:
            step = engine.step()
            assert not step.errors, step.errors
            found |= {key: torch.tensor(numbers(out.pooled)) for key, out in step.outputs}
    return [found[key].flatten() for key in keys]


@pytest.mark.parametrize("model_type", TYPES)
def test_classes(model_type: str, tmp_path: Path) -> None:
    import peft

    base = base_of(model_type, tmp_path / "base")
    targets = TARGETS.get(model_type, "all-linear")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=targets)
    adapted = made(base, config, tmp_path / "lora")
    prompts = [torch.randint(3, VOCAB_SIZE, (n,)).tolist() for n in (5, 17)]
    with torch.inference_mode():
        without = [base(torch.tensor([ids])).logits[0] for ids in prompts]
        theirs = [adapted(torch.tensor([ids])).logits[0] for ids in prompts]
    batch = [(name, ids) for ids in prompts for name in ("", "lora")]
    found = told_by(tmp_path / "base", tmp_path / "lora", batch)
    pairs = zip(without, theirs, strict=True)
    for ours, its in zip(found, (one for pair in pairs for one in pair), strict=True):
        assert (ours - its).abs().max() <= TOLERANCE
    assert (theirs[0] - without[0]).abs().max() > 0.05, "the adapter changes too little"


def test_a_prompt_with_tokens_that_the_adapter_adds(tmp_path: Path) -> None:
    import peft

    wide = enlarged(base_of("llama", tmp_path / "base"))
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"]
    )
    adapted = saved(wide, config, tmp_path / "lora")
    prompts = [[5, VOCAB_SIZE + 2, 9, VOCAB_SIZE], [7, 8, VOCAB_SIZE + 4]]
    with torch.inference_mode():
        theirs = [adapted(torch.tensor([ids])).logits[0] for ids in prompts]
    batch = [("lora", prompts[0]), ("", [4, 5]), ("lora", prompts[1])]
    found = told_by(tmp_path / "base", tmp_path / "lora", batch)
    for ours, its in zip((found[0], found[2]), theirs, strict=True):
        assert (ours - its).abs().max() <= TOLERANCE
