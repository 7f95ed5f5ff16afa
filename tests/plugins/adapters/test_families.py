"""LoRA on every linear layer of each family equals PEFT's, merged and not, also where matrices are
one here or there, with eight adapters in a batch beside rows without."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.interfaces.data.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.data.step import AdapterMove, StepPlan
from dovetail.layers.context import use_adapters
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.lora.runner_adapters import RunnerAdapters
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.families import FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.older_transformers import skip_where_older
from support.peft_adapters import made, peft_warns, wanted

TOLERANCE = 1e-4
NOT_NATIVE = {
    "PersimmonForCausalLM", "Jais2ForCausalLM",
}  # fmt: skip
NATIVE = [name for name in FAMILIES if name not in NOT_NATIVE]
LORA = Selection(kind="adapter", name="lora", target="dovetail_plugins.adapters.lora:LoraAdapter")
PROMPT = torch.randint(3, VOCAB_SIZE, (17,), generator=torch.Generator().manual_seed(1)).tolist()


FACTORS = (1.0, -1.0, 0.5, -0.5, 0.75, -0.75, 0.25, -0.25)
"""What the scale of an adapter is multiplied by for eight different ones."""


def with_slots(module: Any, base: Path, folders: Sequence[Path]) -> RunnerAdapters:
    """Give a model a slot for each adapter in the folders."""
    spec = AdapterSpec(
        max_slots=len(folders), max_rank=8, dtype="float32", takes_bias=True, methods=(LORA,)
    )
    run: Any = SimpleNamespace(model=load_model_facts(base, dtype="float32"))
    adapters = RunnerAdapters(spec, run, torch.device("cpu"))
    adapters.attach(LoadedModel(model=module, build_s=0, weights_s=0))
    for folder in folders:
        adapters.prepare(AdapterSource(name=folder.name, path=str(folder), key=folder.name))
    moves = tuple(AdapterMove(slot, folder.name) for slot, folder in enumerate(folders))
    adapters.before(StepPlan(step_id=1, rows=(), adapters=moves))
    return adapters


def variant(folder: Path, factor: float) -> Path:
    """Write an adapter with another scale."""
    made = folder.with_name(f"{folder.name}_{factor}")
    shutil.copytree(folder, made)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["lora_alpha"] *= factor
    patterns = config.get("alpha_pattern") or {}
    config["alpha_pattern"] = {key: value * factor for key, value in patterns.items()}
    (made / "adapter_config.json").write_text(json.dumps(config))
    return made


@contextmanager
def scaled(model: Any, factor: float) -> Iterator[None]:
    """Have the adapter of PEFT's model another scale for a while."""
    layers = [m for m in model.modules() if isinstance(getattr(m, "scaling", None), dict)]
    before = [layer.scaling for layer in layers]
    for layer in layers:
        layer.scaling = {name: value * factor for name, value in layer.scaling.items()}
    yield
    for layer, scaling in zip(layers, before, strict=True):
        layer.scaling = scaling


def check(
    folder: Path, base: Any, adapter: Path, model: Any, factors: Sequence[float] = FACTORS
) -> None:
    """Compare a prompt with a model's adapter at each of the scales, in one batch between two
    prompts without."""
    paged = PagedModel.load(folder, backend="torch_sdpa")
    folders = [variant(adapter, factor) for factor in factors]
    adapters = with_slots(paged.module, folder, folders)
    rows = [-1, *range(len(factors)), -1]
    with use_adapters(adapters.in_slots(np.repeat(np.array(rows, dtype=np.int32), len(PROMPT)))):
        logits = paged.forward([(row, PROMPT) for row in range(len(rows))])
    first, *ours, last = (one.log_softmax(-1) for one in logits)
    without = wanted(base, PROMPT, 0).logprobs
    for found, factor in zip(ours, factors, strict=True):
        with scaled(model, factor):
            theirs = wanted(model, PROMPT, 0).logprobs
        assert (theirs - without).abs().max() > 0.02, "the adapter changes too little"
        assert (found - theirs).abs().max() <= TOLERANCE
    assert max((first - without).abs().max(), (last - without).abs().max()) <= TOLERANCE


def check_eight(folder: Path, base: Any, adapter: Path, model: Any) -> None:
    """Compare eight adapters in one batch with PEFT's model, and the first with it merged."""
    check(folder, base, adapter, model)
    apart = wanted(model, PROMPT, 0).logprobs
    with peft_warns():
        merged = wanted(model.merge_and_unload(), PROMPT, 0).logprobs
    assert (merged - apart).abs().max() <= TOLERANCE / 2


def transformers_model(folder: Path, auto: str = "AutoModelForCausalLM") -> Any:
    import transformers

    load = getattr(transformers, auto).from_pretrained
    return load(folder, dtype=torch.float32, attn_implementation="eager").eval()


def all_linear(**settings: Any) -> Any:
    import peft

    return peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **settings)


_MAMBA = ("dt_proj", "out_proj")
"""What PEFT refuses, and what transformers multiplies without it."""
LEFT_OUT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("MambaForCausalLM", "FalconMambaForCausalLM", "Mamba2ForCausalLM", "JambaForCausalLM"),
        _MAMBA,
    ),
    **dict.fromkeys(("FalconH1ForCausalLM", "NemotronHForCausalLM"), _MAMBA),
    # A block that several layers call has one adapter, in PEFT one for each call.
    "Zamba2ForCausalLM": (*_MAMBA, r"shared_transformer\..*"),
    "ZambaForCausalLM": (*_MAMBA, r"shared_transf\..*"),
    # Absorbed into queries: not one product that an adapter could be added to. (Sparse attention's
    # indexer is not run at the lengths that are served.)
    "DeepseekV2ForCausalLM": ("kv_b_proj",),
    "DeepseekV3ForCausalLM": ("kv_b_proj",),
    "Glm4MoeLiteForCausalLM": ("kv_b_proj",),
    "KimiLinearForCausalLM": ("kv_b_proj",),
    "LongcatFlashForCausalLM": ("kv_b_proj", "classifier"),
    "BailingHybridForCausalLM": ("kv_b_proj",),
    **dict.fromkeys(
        ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "AXK2ForCausalLM"),
        ("kv_b_proj", "wq_b", "wk", "weights_proj"),
    ),
    **dict.fromkeys(("HYV4ForCausalLM", "Dots3NoteForCausalLM"), ("kv_b_proj", r"indexer\..*")),
    "MiniMaxM3VLForCausalLM": (r"indexer\..*",),
    # A matrix for each group of heads, and what makes entries of several tokens.
    "DeepseekV4ForCausalLM": ("o_a_proj", r"(indexer|compressor)\..*"),
    # Parts of projections: matrices, convolutions and gates.
    **dict.fromkeys(
        ("Inkling2ForCausalLM", "Inkling2LoopForCausalLM"), (r"[a-z_]+_(proj|bias|gate)\..*",)
    ),
    # A few numbers of each token, multiplied one by one.
    "Gemma3nForCausalLM": ("correction_coefs", "prediction_coefs"),
    "PhimoeForCausalLM": ("router",),
    "Llama4ForCausalLM": ("router",),
}
"""Linear layers that are not compared."""


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("family", NATIVE)
def test_every_linear_layer(family: str, tmp_path: Path) -> None:
    skip_where_older(family)
    folder = write_tiny_checkpoint(tmp_path / "base", family)
    base = transformers_model(folder)
    settings: dict[str, Any] = {"fan_in_fan_out": True} if family == "GPT2LMHeadModel" else {}
    if family in LEFT_OUT:
        left = "|".join(LEFT_OUT[family])
        settings["exclude_modules"] = rf".*\.({left})"
    model = made(base, all_linear(**settings), tmp_path / "lora")
    check_eight(folder, base, tmp_path / "lora", model)


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "GPT2LMHeadModel", "Phi3ForCausalLM"])
def test_dora_of_joined_matrices(family: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "base", family)
    base = transformers_model(folder)
    config = all_linear(use_dora=True, fan_in_fan_out=family == "GPT2LMHeadModel")
    model = made(base, config, tmp_path / "lora")
    check_eight(folder, base, tmp_path / "lora", model)


@pytest.mark.parametrize("family", ["Qwen2ForCausalLM", "Gemma2ForCausalLM"])
def test_tied_tables(family: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "base", family)
    base = transformers_model(folder)
    import peft

    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["embed_tokens", "q_proj"])
    model = made(base, config, tmp_path / "lora")
    # Merged, PEFT changes the head that is tied to the table too.
    check(folder, base, tmp_path / "lora", model)


def test_experts_as_modules(tmp_path: Path) -> None:
    """Older versions of transformers had a module for each expert, and PEFT tensors for each."""
    folder = write_tiny_checkpoint(tmp_path / "base", "MixtralForCausalLM")
    base = transformers_model(folder)
    merged = copy.deepcopy(base)
    tensors = {}
    for number, layer in enumerate(merged.model.layers):
        joined, down = layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj
        inner = joined.shape[1] // 2
        for expert in (0, 2, 3):
            places = {
                "w1": joined[expert, :inner],
                "w3": joined[expert, inner:],
                "w2": down[expert],
            }
            for name, weight in places.items():
                a, b = torch.randn(4, weight.shape[1]) * 0.3, torch.randn(weight.shape[0], 4) * 0.3
                with torch.no_grad():
                    weight.add_(2 * b @ a)
                module = f"model.layers.{number}.block_sparse_moe.experts.{expert}.{name}"
                tensors[f"base_model.model.{module}.lora_A.weight"] = a
                tensors[f"base_model.model.{module}.lora_B.weight"] = b
    (tmp_path / "lora").mkdir()
    save_file(tensors, tmp_path / "lora" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(config))
    check(folder, base, tmp_path / "lora", merged, factors=(1.0,))
