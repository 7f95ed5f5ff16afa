"""Layers of stored checkpoints beyond plain ones: tiles, experts, heads, and what differs by layer.

Tensors are packed here by the formats' own words, or by the library that defines them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail.interfaces.quantization import LinearSpec
from dovetail_plugins.quantization.auto_round import AutoRound
from dovetail_plugins.quantization.awq import PLACES, Awq
from dovetail_plugins.quantization.compressed_tensors import CompressedTensors
from dovetail_plugins.quantization.gptq import Gptq
from dovetail_plugins.quantization.marlin import Marlin
from dovetail_testing.contract import model_spec
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import dequantized_model, found_logprobs, wanted_logprobs

DATA = Path(__file__).resolve().parents[2] / "data" / "compressed_tensors"
GROUP = 32
EXACT = 1e-4
Tensors = dict[str, torch.Tensor]


def method(cls: Any, **config: Any) -> Any:
    """Return a method over a checkpoint that has this quantization_config."""
    spec = model_spec()
    stored = {"quant_method": cls.stored_as[0], **config}
    facts = {**spec.hf_config, "quantization_config": stored}
    return cls(
        cls.Options(activations="float"),
        msgspec.structs.replace(spec, path="model", hf_config=facts),
    )


def linear_spec(name: str, inputs: int, *outputs: int) -> LinearSpec:
    return LinearSpec(name=name, in_size=inputs, out_sizes=outputs, dtype="float32", device="cpu")


def error(made: Any, spec: LinearSpec, tensors: Tensors, meant: torch.Tensor) -> float:
    """Return the largest error of a layer's products, of the largest product."""
    linear, layer = made.linear(spec), nn.Module()
    linear.create(layer, spec)
    for name, tensor in tensors.items():
        assert layer.get_parameter(name).shape == tensor.shape, name
        layer.get_parameter(name).data.copy_(tensor)
    linear.finish(layer)
    x = torch.randn(5, spec.in_size, generator=torch.Generator().manual_seed(1))
    right = x @ meant.float().T
    return float((linear.apply(layer, x, None) - right).abs().max() / right.abs().max())


def words_of(nibbles: list[int]) -> int:
    """Return an int32 of eight values, the first in the lowest bits."""
    word = sum(value << 4 * place for place, value in enumerate(nibbles))
    return word - (word >> 31 << 32)


@pytest.mark.parametrize("group", [128, -1])
def test_marlin(group: int) -> None:
    """A thread's registers, one after the other, as the instruction's fragments are described."""
    random = torch.Generator().manual_seed(5)
    inputs, outputs = 256, 128
    size = inputs if group < 0 else group
    values = torch.randint(16, (inputs, outputs), generator=random)
    scales = (torch.rand(inputs // size, outputs, generator=random) / 50 + 0.01).half()
    rows = []
    for top in range(0, inputs, 16):
        row = []
        for left in range(0, outputs, 64):
            for thread in range(32):
                for subtile in range(4):
                    held = []
                    for half in (0, 8):  # b0, b1, b2, b3 of a fragment of 8 columns
                        column = left + 16 * subtile + half + thread // 4
                        first = top + thread % 4 * 2
                        held += [values[first + i, column].item() for i in (0, 1, 8, 9)]
                    row.append(words_of(held[0::2] + held[1::2]))
        rows.append(row)
    order = [i + 8 * j for i in range(8) for j in range(8)]
    if group < 0:
        order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    tensors = {
        "B": torch.tensor(rows, dtype=torch.int32),
        "s": scales.view(len(scales), -1, len(order))[..., order].reshape(scales.shape),
    }
    meant = ((values - 8) * scales.float().repeat_interleave(size, 0)).T
    spec = linear_spec("a.o_proj", inputs, outputs)
    config = {"bits": 4, "group_size": group}
    assert error(method(Marlin, **config), spec, tensors, meant) <= EXACT
    by_format = method(Gptq, checkpoint_format="marlin", **config)
    assert error(by_format, spec, tensors, meant) <= EXACT


def test_tiles_that_do_not_fit_are_refused() -> None:
    made = method(Marlin, bits=4, group_size=128)
    with pytest.raises(ConfigError, match=r"config\.json: a\.qkv_proj has 256 inputs and \(64, 32"):
        made.linear(spec := linear_spec("a.qkv_proj", 256, 64, 32, 32)).stored(spec)


def test_sparse_marlin_in_groups() -> None:
    stored = load_file(DATA / "layers" / "marlin_24_groups.safetensors")
    meant = stored.pop("meant")
    names = {"weight_packed": "B_24", "scale_packed": "s", "meta": "B_meta"}
    tensors = {names[name]: tensor for name, tensor in stored.items() if name in names}
    made = method(Gptq, checkpoint_format="marlin_24", bits=4, group_size=128)
    spec = linear_spec("a.o_proj", 512, 64)
    assert error(made, spec, tensors, meant) <= 1e-3  # float16 `meant`
    weight = made.layout(spec).weight(tensors)
    assert (weight.format, weight.values.shape) == ("vectors", (64, 128))


def pack(values: torch.Tensor, places: list[int] | None = None) -> torch.Tensor:
    """Return 4-bit values [..., n] as int32 words [..., n / 8]."""
    at = torch.tensor(places or range(8)) * 4
    words = (values.long().unflatten(-1, (-1, 8)) << at).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values [O, I], scales and zero points [O, I / 32] of the nearest 4-bit matrix."""
    runs = weight.float().unflatten(1, (-1, GROUP))
    low, high = runs.amin(-1).clamp(max=0), runs.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(1, 15)
    values = (runs / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, 15)
    return values.flatten(1).int(), scales, zeros.int()


def meant_by(name: str, weight: torch.Tensor) -> torch.Tensor:
    if name.endswith(".gate"):
        return weight
    values, scales, zeros = rounded(weight)
    spread = (values.unflatten(1, (-1, GROUP)) - zeros.unsqueeze(-1)) * scales.unsqueeze(-1)
    return spread.flatten(1)


def as_gptq(weight: torch.Tensor) -> Tensors:
    values, scales, zeros = rounded(weight)
    place = torch.arange(weight.shape[1], dtype=torch.int32) // GROUP
    return {
        "qweight": pack(values).T,
        "qzeros": pack(zeros.T - 1),
        "scales": scales.T.half(),
        "g_idx": place,
    }


def as_awq(weight: torch.Tensor) -> Tensors:
    values, scales, zeros = rounded(weight)
    return {
        "qweight": pack(values.T, PLACES),
        "qzeros": pack(zeros.T, PLACES),
        "scales": scales.T.half(),
    }


def packed_checkpoint(
    folder: Path, architecture: str, write: Callable[[torch.Tensor], Tensors], **config: Any
) -> tuple[Path, Any]:
    """Return a checkpoint whose linear layers are all packed, and transformers' model of it."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 64}
    path = write_tiny_checkpoint(folder, architecture, mlp_only_layers=[], **sizes)
    reference = dequantized_model(path, meant_by)
    file = path / "model.safetensors"
    tensors: Tensors = {}
    for name, tensor in load_file(file).items():
        layer = name.removesuffix(".weight")
        if tensor.dim() != 2 or layer.endswith((".gate", "embed_tokens")):
            tensors[name] = tensor
            continue
        tensors |= {f"{layer}.{leaf}": t.contiguous() for leaf, t in write(tensor).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    facts = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**facts, "quantization_config": config}))
    return path, reference


@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "MixtralForCausalLM"])
@pytest.mark.parametrize("quant_method", ["gptq", "awq"])
def test_experts_and_heads(quant_method: str, architecture: str, tmp_path: Path) -> None:
    """Experts and the head are packed as other layers are; the router is left alone."""
    path, reference = packed_checkpoint(
        tmp_path / "model",
        architecture,
        as_gptq if quant_method == "gptq" else as_awq,
        quant_method=quant_method,
        bits=4,
        group_size=GROUP,
        lm_head=True,
    )
    random = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, VOCAB_SIZE, (n,), generator=random).tolist() for n in (17, 1, 9)]
    wanted, deviation = wanted_logprobs(reference, prompts)
    with LLM(
        model=str(path),
        plugin_options={"quantization": {"activations": "float"}},
        num_gpu_blocks_override=64,
        block_size=16,
        max_model_len=64,
        max_logprobs=-1,
        use_tqdm_on_load=False,
    ) as llm:
        found = found_logprobs(llm, prompts)
    assert (found - wanted).abs().max() <= EXACT * deviation * 10


def test_dynamic_changes_layers() -> None:
    made = method(
        Gptq,
        bits=4,
        group_size=32,
        dynamic={
            r"-:.*\.o_proj": {},
            r"+:.*\.(gate|up)_proj": {"bits": 8, "group_size": 64},
            r".*\.down_proj": {"bits": 2},
            r".*layers\.1\.": {"bits": 3},
        },
    )

    def stored(name: str, inputs: int, *outputs: int) -> dict[str, tuple[int, ...]]:
        spec = linear_spec(f"model.layers.1.{name}", inputs, *outputs)
        return {tensor.name: tensor.shape for tensor in made.linear(spec).stored(spec)}

    assert stored("self_attn.o_proj", 64, 64) == {"weight": (64, 64)}
    assert stored("mlp.gate_up_proj", 64, 96, 96)["qweight"] == (16, 192)
    assert stored("mlp.gate_up_proj", 64, 96, 96)["scales"] == (1, 192)
    assert stored("mlp.down_proj", 96, 64)["qweight"] == (6, 64)
    assert stored("self_attn.qkv_proj", 64, 64, 32, 32)["qweight"] == (6, 128)
    assert stored("mlp.experts.gate_up_proj", 64, 96, 96)["qweight"] == (16, 192)


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (Gptq, {"dynamic": {r".*q_proj": {"bits": 8}}}),
        (AutoRound, {"extra_config": {"a.q_proj": {"bits": 8}}}),
        (
            CompressedTensors,
            {
                "format": "pack-quantized",
                "config_groups": {
                    "0": {"targets": ["re:.*q_proj"], "weights": {"num_bits": 8}},
                    "1": {"targets": ["Linear"], "weights": {"num_bits": 4}},
                },
            },
        ),
    ],
    ids=["gptq", "auto-round", "compressed-tensors"],
)
def test_parts_of_a_layer_must_be_alike(cls: Any, config: dict[str, Any]) -> None:
    made = method(cls, **config)
    with pytest.raises(
        ConfigError, match=r"config\.json: a\.q_proj, a\.k_proj, a\.v_proj have different formats"
    ):
        made.linear(linear_spec("a.qkv_proj", 64, 64, 32, 32))


@pytest.mark.parametrize(
    ("cls", "config", "message"),
    [
        (Gptq, {"bits": 5}, "5 bits are not read; 2, 3, 4, 8"),
        (Gptq, {"checkpoint_format": "bitblas"}, 'the layout "bitblas" is not read'),
        (Awq, {"bits": 8}, "only 4 bits are read"),
        (AutoRound, {"data_type": "mx_fp"}, 'weights of type "mx_fp" are not read'),
        (AutoRound, {"packing_format": "auto_round:auto_awq", "bits": 8}, "8 bits in AWQ's"),
        (CompressedTensors, {"config_groups": {"0": {"format": "mxfp6-pack-quantized",
                                                     "weights": {"num_bits": 6}}}},
         'the format "mxfp6-pack-quantized" is not read'),
        (CompressedTensors, {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        (CompressedTensors, {"sparsity_config": {"format": "sparse-bitmask"}}, "sparse-bitmask"),
    ],
)  # fmt: skip
def test_configs_that_are_not_read(cls: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: .*{message}"):
        method(cls, **config)


def test_groups_choose_layers_by_name_before_class() -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    made = method(
        CompressedTensors,
        format="pack-quantized",
        ignore=["re:.*layers.0.*o_proj", "lm_head"],
        config_groups={
            "0": {"targets": ["Linear"], "weights": weights},
            "1": {"targets": ["re:.*down_proj$"], "weights": {**weights, "num_bits": 8}},
        },
    )

    def packed(name: str, *outputs: int) -> tuple[int, ...]:
        spec = linear_spec(name, 64, *outputs)
        return made.linear(spec).stored(spec)[0].shape

    assert packed("model.layers.0.mlp.down_proj", 64) == (64, 16)
    assert packed("model.layers.1.mlp.experts.down_proj", 64) == (64, 16)
    assert packed("model.layers.0.mlp.gate_up_proj", 96, 96) == (192, 8)
    assert packed("model.layers.0.self_attn.o_proj", 64) == (64, 64)
    assert packed("model.layers.1.mlp.gate", 4) == (4, 64)
    assert packed("lm_head", 320) == (320, 64)


def test_a_last_group_may_be_shorter() -> None:
    random = torch.Generator().manual_seed(6)
    values = torch.randint(16, (64, 96), generator=random)
    scales = (torch.rand(64, 2, generator=random) / 50 + 0.01).half()
    place = torch.arange(96) // 64
    tensors = {
        "qweight": pack(values).T,
        "qzeros": pack(torch.full((2, 64), 6)),
        "scales": scales.T,
        "g_idx": place.int().unsqueeze(0),
    }
    meant = (values - 7) * scales.float()[:, place]
    made = method(Gptq, bits=4, group_size=64)
    assert error(made, linear_spec("a.o_proj", 96, 64), tensors, meant) <= EXACT
