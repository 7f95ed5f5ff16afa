"""gpt-oss as it is published: MXFP4 experts, outliers that reach the clamps, several ranks."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.activation import clamped_gate
from dovetail.layers.moe.experts import Experts
from dovetail.layers.weights import load_weights
from dovetail_plugins.attention.native_cpu import NativeCpu
from dovetail_plugins.models.gpt_oss import GptOssForCausalLM
from dovetail_plugins.quantization.none import Unquantized
from dovetail_testing.contract import model_spec
from dovetail_testing.harness import PagedModel, load_model, load_plugin
from dovetail_testing.ranks import ODD_AND_EVEN
from dovetail_testing.tiny.models import write_tiny_checkpoint

SIZES = {"head_dim": 16, "hidden_size": 64, "intermediate_size": 64, "swiglu_limit": 7.0}
TOKENS = [7 * i * i % 320 for i in range(26)]
PIECES = ((0, 9), (9, 10), (10, 25), (25, 26))
QUANTIZED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
EXPERTS = "mlp.experts."


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In full precision, with outliers: sinks that take nearly all and nothing, channels that other
    tokens lack, and biases of experts beyond the clamps."""
    path = tmp_path_factory.mktemp("tiny") / "plain"
    write_tiny_checkpoint(path, "GptOssForCausalLM", **SIZES)
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("sinks"):
            tensor[:2] = torch.tensor([9.0, -30.0])
        if name.endswith("embed_tokens.weight"):
            tensor[::5, 3] *= 40
        if name.endswith("gate_up_proj_bias"):
            tensor[:, ::7] += 9
            tensor[:, 1::7] -= 9
    save_file(tensors, file, metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def published(plain: Path) -> Path:
    """The same with random experts in MXFP4, as the published checkpoints have them."""
    path = plain.parent / "mxfp4"
    copytree(plain, path)
    tensors = load_file(path / "model.safetensors")
    random = torch.Generator().manual_seed(0)
    for name in [n for n in tensors if EXPERTS in n and not n.endswith("bias")]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = (count, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), generator=random, dtype=torch.uint8)
        tensors[f"{name}_blocks"] = blocks
        tensors[f"{name}_scales"] = torch.randint(
            119, 126, shape, generator=random, dtype=torch.uint8
        )
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZED}))
    return path


def judged(plain: Path, path: Path) -> Any:
    """Return transformers' model with a checkpoint's experts as transformers itself reads them."""
    import transformers
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = transformers.AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    stored = load_file(path / "model.safetensors")
    for name, parameter in model.named_parameters():
        if f"{name}_blocks" in stored:
            parts = stored[f"{name}_blocks"], stored[f"{name}_scales"]
            parameter.data = convert_moe_packed_tensors(*parts, dtype=torch.float32)
    return model


@pytest.mark.parametrize("kind", ["plain", "published"])
@pytest.mark.parametrize("backend", ["native_cpu", "torch_sdpa"])
def test_logits_are_those_of_transformers(
    kind: str, backend: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    with torch.inference_mode():
        wanted = judged(request.getfixturevalue("plain"), path)(torch.tensor([TOKENS])).logits[0]
    chosen: Any = load_plugin(AttentionBackend, "attention_backend", backend)  # type: ignore[type-abstract]
    model = PagedModel(load_model(path), backend=chosen, block_tokens=16, num_blocks=8)
    (whole,) = model.forward([(0, TOKENS)])
    pieces = torch.cat([model.forward([(1, TOKENS[a:b])])[0] for a, b in PIECES])
    for found in (whole, pieces):
        assert (found - wanted).abs().max() <= 1e-4 * max(1.0, wanted.abs().max() / 10)


def test_mxfp4_experts_are_the_same_bits(plain: Path, published: Path) -> None:
    """Products by one-hot rows give the weights, which no float32 sum rounds."""
    ours = load_model(published)
    assert isinstance(ours, GptOssForCausalLM)
    theirs = judged(plain, published)
    for mine, judge in zip(ours.model.layers, theirs.model.layers, strict=True):
        experts: Experts = mine.mlp.experts
        for expert in range(4):
            wanted = judge.mlp.experts.gate_up_proj[expert]
            wanted = torch.cat([wanted[:, ::2], wanted[:, 1::2]], dim=1)
            for leaf, weight in (
                ("gate_up_proj", wanted),
                ("down_proj", judge.mlp.experts.down_proj[expert]),
            ):
                matrix = experts._matrices[leaf][expert]
                assert matrix.packed is None or matrix.packed.format == "table4"
                assert torch.equal(matrix.halves(torch.eye(64)), weight)


def test_the_clamps_are_reached(plain: Path) -> None:
    """Without them the outliers' fixture has other logits: the parity above is of them too."""
    config = json.loads((plain / "config.json").read_text())
    other = copytree(plain, plain.parent / "wider", dirs_exist_ok=True)
    (other / "config.json").write_text(json.dumps(config | {"swiglu_limit": 100.0}))
    first, second = (PagedModel.load(p).forward([(0, TOKENS)])[0] for p in (plain, other))
    assert (first - second).abs().max() > 0.01


def test_the_config_says_what_serves_it(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Config.from_fields({"model": str(published), "dtype": "float32"})
    run = resolve(asked).run
    assert (run.quantization.name, run.attention.name) == ("mxfp4", "native_cpu")
    without = NativeCpu.capabilities - {"sinks"}
    monkeypatch.setattr(NativeCpu, "capabilities", without)
    assert resolve(asked).run.attention.name == "torch_sdpa"


def whole_experts() -> dict[str, torch.Tensor]:
    """Return experts as published in full precision: inputs first, gate and up in turns."""
    random = torch.Generator().manual_seed(3)
    shapes = {
        "gate_up_proj": (4, 16, 24),
        "gate_up_proj_bias": (4, 24),
        "down_proj": (4, 12, 16),
        "down_proj_bias": (4, 16),
    }
    return {n: torch.randn(shape, generator=random) for n, shape in shapes.items()}


def outputs(rank: RankSpec, apart: str = "") -> torch.Tensor:
    """Return what a rank's experts make of five tokens."""
    spec = model_spec()
    quant = Unquantized(Unquantized.Options(), spec)
    context = BuildContext(model=spec, quant=quant, device="cpu", rank=rank, expert_placement=apart)
    experts = Experts(
        context,
        "experts",
        num_experts=4,
        size=16,
        inner=12,
        act=clamped_gate(1.702, 7.0),
        alternates=True,
        bias=True,
    )
    holder = torch.nn.ModuleDict({"experts": experts})
    named = {f"experts.{name}": tensor for name, tensor in whole_experts().items()}
    load_weights(holder, WeightMap(transposed=(".gate_up_proj", ".down_proj")), named.items(), rank)
    random = torch.Generator().manual_seed(4)
    x = torch.randn(5, 16, generator=random)
    picked = torch.tensor([[0, 1], [3, 2], [1, 3], [2, 0], [3, 1]])
    return experts(x, torch.tensor([0.25, 0.75]).expand(5, 2).contiguous(), picked)


@pytest.mark.parametrize("apart", ["", ODD_AND_EVEN])
def test_two_ranks_of_experts_are_the_whole(apart: str) -> None:
    """Half of each expert's inner size, or whole experts each: biases are added once."""
    ranks = [RankSpec(rank=r, world_size=2, tensor_rank=r, tensor_size=2) for r in (0, 1)]
    parts = [outputs(rank, apart) for rank in ranks]
    torch.testing.assert_close(sum(parts), outputs(RankSpec()), atol=1e-4, rtol=1e-5)
    assert not torch.allclose(parts[0], parts[1])
