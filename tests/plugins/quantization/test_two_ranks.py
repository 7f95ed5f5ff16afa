"""Every quantization method divided over two ranks: together they answer what one rank does.

One process plays all ranks: layers are filled from one checkpoint as each rank takes its part of
it, and outputs are joined or summed by hand. What a layer means is other tests' matter; most
tensors here are random bits in the shapes that a method says it stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.linear import GatedLinear, QKVParallelLinear, RowParallelLinear
from dovetail.layers.moe.experts import Experts
from dovetail.layers.stages import Stage
from dovetail.layers.weights import load_weights
from dovetail_testing.contract import model_spec
from dovetail_testing.ranks import ODD_AND_EVEN

pytestmark = pytest.mark.any_isa  # parts are cut out of tensors, and compared with the whole
DATA = Path(__file__).resolve().parents[2] / "data" / "compressed_tensors"
RANKS = [RankSpec(rank=r, world_size=2, tensor_rank=r, tensor_size=2) for r in (0, 1)]
STAGES = [
    RankSpec(rank=r, world_size=2, stage=r, num_stages=2, stage_layers=(1, 1)) for r in (0, 1)
]
FUSED = {
    **{f"{n}_proj": ("qkv_proj", n) for n in "qkv"},
    **{f"{n}_proj": ("gate_up_proj", n) for n in ("gate", "up")},
}
NUM_EXPERTS, ROWS = 2, 5
EXACT = 1e-4
"""Of the largest output: both sides sum float32 products of the same matrices."""
ROUNDED = 0.03
"""Of the same, where a rank rounds what it holds itself: its inputs, or a weight that has a scale
an output."""
CROSSED = 0.3
"""What ranks in each other's place are off by, at least."""
SUMMED = ("o_proj", "down_proj", "experts")
"""Layers of which ranks have some inputs; of others they have some outputs."""
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A method, what config.json says of it, and the layers it is tried in."""

    method: str
    config: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 64
    bound: float = EXACT
    """Of layers whose inputs are divided; others are always exact."""
    has_experts: bool = False


def gguf_types(name: str) -> dict[str, str]:
    """Return GGUF's type of every matrix."""
    leaves = [f"{n}_proj" for n in ("q", "k", "v", "o", "gate", "up", "down")]
    return dict.fromkeys(
        [*leaves, *(f"mlp.experts.{n}_proj" for n in ("gate", "up", "down"))], name
    )


FLOAT = {"activations": "float"}
"""Of all cases: a rank rounds the inputs that it has."""
CASES = {
    "gptq": Case(method="gptq", config={"bits": 4, "group_size": 32}),
    "gptq 3 bits": Case(
        method="gptq", config={"bits": 3, "group_size": 32}, size=128
    ),
    "gptq per output": Case(method="gptq", config={"bits": 8, "group_size": -1}),
    "gptq experts": Case(
        method="gptq", config={"bits": 4, "group_size": 32}, has_experts=True
    ),
    "gptq_marlin": Case(method="gptq_marlin", config={"group_size": 16}),
    "awq": Case(method="awq", config={"group_size": 32}),
    "awq_marlin": Case(method="awq_marlin", config={"group_size": 16}),
    "auto-round": Case(method="auto-round", config={"group_size": 32}),
    "auto-round as awq": Case(
        method="auto-round",
        config={"group_size": 32, "packing_format": "auto_round:auto_awq"}),
    "ipex": Case(method="ipex", config={"quant_method": "gptq", "group_size": 32}),
    "marlin": Case(method="marlin", config={"group_size": 64}, size=256),
    "marlin, a group a rank": Case(
        method="marlin", config={"group_size": 128}, size=256
    ),
    "marlin per output": Case(method="marlin", config={"group_size": -1}, size=256),
    "marlin_24": Case(
        method="gptq_marlin_24", config={"group_size": 64}, size=256
    ),
    "marlin_24, a group a rank": Case(
        method="gptq_marlin_24", config={"group_size": 128}, size=256
    ),
    "marlin_24 8 bits": Case(
        method="gptq_marlin_24", config={"bits": 8, "group_size": -1}, size=256
    ),
    "qqq": Case(method="qqq", config={"group_size": 128}, size=512),
    "qqq, a group a rank": Case(method="qqq", config={"group_size": 128}, size=256),
    "qqq per output": Case(method="qqq", config={"group_size": -1}, size=256),
    "nf4": Case(method="bitsandbytes", config={"load_in_4bit": True}, size=256),
    "nf4, half a block a rank": Case(method="bitsandbytes", config={"load_in_4bit": True}),
    "nf4, a block a rank": Case(method="bitsandbytes", config={"load_in_4bit": True}, size=128),
    "bitsandbytes int8": Case(method="bitsandbytes", config={"load_in_8bit": True}),
    "hqq": Case(method="hqq", config={"quant_config": {"weight_quant_params": {
        "nbits": 4, "group_size": 16, "axis": 1}}}),
    "hqq axis 0": Case(method="hqq", config={"quant_config": {"weight_quant_params": {
        "nbits": 4, "group_size": 64, "axis": 0}}}),
    "torchao int4": Case(method="torchao", config={"quant_type": {"default": {
        "_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}}}),
    "torchao int8": Case(method="torchao", config={"quant_type": {"default": {
        "_type": "Int8WeightOnlyConfig"}}}),
    "mxfp4": Case(method="mxfp4", has_experts=True),
    "fp8": Case(method="fp8", config={"activation_scheme": "dynamic"}),
    "fp8 blocks": Case(method="fp8", config={"weight_block_size": [16, 16]}, has_experts=True),
    "fbgemm_fp8": Case(method="fbgemm_fp8", config={"activation_scale_ub": 1200.0}),
    "modelopt fp8": Case(method="modelopt", config={"quant_algo": "FP8"}),
    "modelopt nvfp4": Case(method="modelopt", config={"quant_algo": "NVFP4"}),
    "aqlm": Case(method="aqlm", config={"num_codebooks": 2, "nbits_per_codebook": 6,
                 "in_group_size": 8, "out_group_size": 1}),
    "gguf Q4_0": Case(method="gguf", config={"types": gguf_types("Q4_0")},
                      has_experts=True),
    "gguf Q8_0": Case(method="gguf", config={"types": gguf_types("Q8_0")}),
    "gguf Q4_K": Case(method="gguf", config={"types": gguf_types("Q4_K")}, size=512),
    "gguf IQ4_XS": Case(method="gguf", config={"types": gguf_types("IQ4_XS")},
                        size=512),
    "deepspeedfp 8": Case(method="deepspeedfp", config={"bits": 8, "group_size": 32}),
    "deepspeedfp 6": Case(method="deepspeedfp", config={"bits": 6, "group_size": 16}),
    "int4": Case(method="int4", options={"bits": 4}, size=512, has_experts=True),
    "int4, half a run a rank": Case(method="int4", options={"bits": 4}, size=256, bound=0.05),
    "int4-plain": Case(method="int4-plain", options={"group": 32}, has_experts=True),
    "nf4 while loading": Case(method="bitsandbytes", size=128),
    "fp4 while loading": Case(method="bitsandbytes", options={"kind": "fp4"}, size=128),
    "bitsandbytes int8 while loading": Case(
        method="bitsandbytes", options={"kind": "int8"}, bound=ROUNDED
    ),
    "int8": Case(method="int8", bound=ROUNDED, has_experts=True),
    "experts_int8": Case(method="experts_int8", bound=ROUNDED, has_experts=True),
    "fp8 while loading": Case(method="fp8", bound=ROUNDED, has_experts=True),
    "tpu_int8": Case(method="tpu_int8", bound=ROUNDED),
    "neuron_quant": Case(method="neuron_quant", bound=ROUNDED),
    "neuron_quant fp8": Case(method="neuron_quant", options={"dtype": "f8e4m3fn"}, bound=ROUNDED),
}  # fmt: skip


def names_of(case: Case) -> list[str]:
    """Return the layers that a case is tried in."""
    return ["qkv_proj", "o_proj", "gate_up_proj", "down_proj", *["experts"] * case.has_experts]


def made(case: Case) -> Any:
    """Return the case's method."""
    spec = model_spec()
    cls: Any = registry.load("quantization", case.method)
    facts = {k: v for k, v in spec.hf_config.items() if k != "quantization_config"}
    if case.config:
        facts["quantization_config"] = {"quant_method": case.method, **case.config}
    spec = msgspec.structs.replace(spec, path="model", hf_config=facts)
    return cls(cls.Options(**{**FLOAT, **case.options}), spec)


def layers(case: Case, rank: RankSpec, names: Iterable[str], apart: str = "") -> nn.ModuleDict:
    """Return one rank's empty layers, those of these names. `apart` places whole experts."""
    context = BuildContext(
        model=model_spec(), quant=made(case), device="cpu", rank=rank, expert_placement=apart
    )
    return nn.ModuleDict({name: layer(case.size, context, name) for name in names})


def layer(size: int, context: BuildContext, name: str) -> nn.Module:
    """Return an empty layer of a block of `size` inputs."""
    if name == "qkv_proj":
        return QKVParallelLinear(
            context, name, size, num_heads=4, num_kv_heads=2, head_size=size // 4
        )
    if name == "gate_up_proj":
        return GatedLinear(context, name, size, 2 * size, act="silu")
    if name == "experts":
        return Experts(
            context, "mlp.experts", num_experts=NUM_EXPERTS, size=size, inner=size, act="silu"
        )
    return RowParallelLinear(context, name, size * (2 if name == "down_proj" else 1), size)


def random_tensors(case: Case) -> Tensors:
    """Return a checkpoint of a block: a tensor for each that the method says it stores."""
    generator = torch.Generator().manual_seed(7)
    return {
        name: random_tensor(name.rpartition(".")[2], parameter, generator)
        for name, parameter in layers(case, RankSpec(), names_of(case)).named_parameters()
        if not vars(parameter).get("is_optional")
    }


def random_tensor(leaf: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    shape, dtype = like.shape, like.dtype
    if vars(like).get("is_per_part"):
        shape = shape[1:]
    if leaf.rpartition("proj_")[2] in GGUF_BLOCKS:
        return gguf_rows(leaf.rpartition("proj_")[2], shape)
    if leaf.endswith("scales") and dtype == torch.uint8:
        return torch.randint(121, 125, shape, generator=generator, dtype=dtype)
    if dtype == torch.int16:
        kept_two = torch.tensor([4, 8, 9, 12, 13, 14])
        nibbles = kept_two[torch.randint(6, (*shape, 4), generator=generator)]
        return (nibbles << 4 * torch.arange(4)).sum(-1).to(dtype)
    if not dtype.is_floating_point:
        low, high = (-8, 8) if dtype == torch.int8 else (0, 256)
        if dtype == torch.int32:
            low, high = -(2**31), 2**31
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator)
    return (values if "scale" not in leaf else values.abs() / 50 + 0.01).to(dtype)


GGUF_BLOCKS = {"Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144), "IQ4_XS": (256, 136)}
"""Types -> the values and bytes of a block."""


def gguf_rows(name: str, shape: torch.Size) -> torch.Tensor:
    from support.gguf_files import quantized

    values, num_bytes = GGUF_BLOCKS[name]
    wide = (*shape[:-1], shape[-1] // num_bytes * values)
    drawn = np.random.default_rng(len(shape) + shape[-1]).normal(size=wide)
    return torch.from_numpy(quantized(drawn.astype(np.float32), name)[0].copy())


def outputs(
    case: Case,
    tensors: Mapping[str, torch.Tensor],
    rank: RankSpec,
    inputs: RankSpec,
    apart: str = "",
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Return what a rank's layers make of the inputs of a rank: parts to join, or one to sum."""
    here = layers(case, rank, layers_of(tensors), apart)
    quant = made(case)
    load_weights(here, WeightMap(fused=FUSED), tensors.items(), rank, quant.ignored)
    generator = torch.Generator().manual_seed(8)
    for name, held in here.items():
        is_divided = isinstance(held, RowParallelLinear)
        size = held.full_in_size if is_divided else case.size
        x = torch.randn(ROWS, size, generator=generator)
        if isinstance(held, RowParallelLinear):
            x = x.chunk(inputs.tensor_size, dim=-1)[inputs.tensor_rank]
            yield name, [held.method.apply(held, x, None)]
        elif isinstance(held, QKVParallelLinear):
            yield name, list(held.forward_split(x))
        elif isinstance(held, Experts):
            picked = torch.arange(ROWS * 2).view(ROWS, 2) % NUM_EXPERTS
            yield name, [held(x, torch.full((ROWS, 2), 0.5), picked)]
        else:
            yield name, [held(x)]


def layers_of(tensors: Iterable[str]) -> list[str]:
    """Return the layers that tensors of these names belong to."""
    words = (name.partition(".")[0] for name in tensors)
    return list(dict.fromkeys(FUSED.get(word, (word, ""))[0] for word in words))


def check(case: Case, tensors: Mapping[str, torch.Tensor]) -> None:
    """Compare two ranks with one, layer by layer; in each other's place they must differ."""
    whole = dict(outputs(case, tensors, RankSpec(), RankSpec()))
    parts = [dict(outputs(case, tensors, rank, rank)) for rank in RANKS]
    crossed = [dict(outputs(case, tensors, rank, RANKS[1 - rank.rank])) for rank in RANKS]
    assert whole
    for name, wanted in whole.items():
        bound = case.bound if name in SUMMED else EXACT
        assert distance(name, parts, wanted) <= bound, name
        if name != "experts":
            assert distance(name, crossed[::-1], wanted) >= CROSSED, name


def distance(name: str, parts: Any, wanted: list[torch.Tensor]) -> float:
    """Return how far two ranks' outputs together are from one rank's, of the largest of those."""
    whole = torch.cat(wanted, dim=-1)
    pairs = zip(*(part[name] for part in parts), strict=True)
    joined = [a + b if name in SUMMED else torch.cat([a, b], dim=-1) for a, b in pairs]
    return float((torch.cat(joined, dim=-1) - whole).abs().max() / whole.abs().max())


def test_every_method_has_a_case() -> None:
    (kind,) = (kind for kind in registry.admin.describe() if kind["kind"] == "quantization")
    built_in = {e["name"] for e in kind["entries"] if e["distribution"] == "dovetail-llm"}
    same = {"none", "modelopt_fp4"}
    assert built_in - same == {case.method for case in CASES.values()} | {"compressed-tensors"}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_the_whole(name: str) -> None:
    check(CASES[name], random_tensors(CASES[name]))


class Blocks(nn.Module):
    """Two blocks of a case's layers, as far as a stage has them."""

    def __init__(self, case: Case, rank: RankSpec) -> None:
        super().__init__()
        context = BuildContext(
            model=model_spec(num_layers=2), quant=made(case), device="cpu", rank=rank
        )
        self.blocks = Stage(context).layers(lambda _: layers(case, rank, names_of(case)))


def test_each_stage_holds_its_block_as_stored() -> None:
    """In whatever format a checkpoint is, a stage fills its own layers and passes by the others."""
    for name, case in CASES.items():
        quant, one = made(case), random_tensors(case)
        stored = {f"blocks.{i}.{key}": tensor for i in range(2) for key, tensor in one.items()}
        filled = []
        for rank in (RankSpec(), *STAGES):
            here, fused = Blocks(case, rank), WeightMap(fused=FUSED)
            load_weights(here, fused, stored.items(), rank, quant.ignored, repacks=False)
            filled.append(dict(here.named_parameters()))
        whole, *parts = filled
        assert whole.keys() == parts[0].keys() | parts[1].keys(), name
        assert parts[0] and not parts[0].keys() & parts[1].keys(), name
        for part in parts:
            assert all(torch.equal(value, whole[key]) for key, value in part.items()), name


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_experts])
def test_ranks_with_experts_of_their_own_are_the_whole(name: str) -> None:
    """Each rank holds one of two experts, the first rank the second one."""
    case = CASES[name]
    every = random_tensors(case).items()
    tensors = {key: tensor for key, tensor in every if key.startswith("experts.")}
    for rank in RANKS:
        here = layers(case, rank, ["experts"], ODD_AND_EVEN)
        assert {parameter.shape[0] for parameter in here.parameters()} == {1}
    wanted = dict(outputs(case, tensors, RankSpec(), RankSpec()))["experts"]
    parts = [dict(outputs(case, tensors, rank, rank, ODD_AND_EVEN)) for rank in RANKS]
    assert distance("experts", parts, wanted) <= EXACT
    assert not torch.allclose(parts[0]["experts"][0], parts[1]["experts"][0])


def compressed(name: str) -> tuple[Case, Tensors]:
    """Return a case of tests/data and the tensors of its MLP, written by compressed-tensors."""
    prefix = "model.layers.0.mlp."
    tensors = load_file(DATA / f"{name}.safetensors")
    kept = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    config = json.loads((DATA / f"{name}.json").read_text())
    bound = ROUNDED if "w8a8" in name else EXACT
    return Case(method="compressed-tensors", config=config, bound=bound), kept


WRITTEN = sorted({file.stem for file in DATA.glob("*.safetensors")} - {"act_order"})


@pytest.mark.parametrize("name", WRITTEN)
def test_layers_of_compressed_tensors(name: str) -> None:
    check(*compressed(name))


def test_ordered_groups_across_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="the inputs of a group are on several ranks"):
        check(*compressed("act_order"))


@pytest.mark.parametrize(
    ("name", "size"),
    [("gptq", 96), ("awq", 96), ("auto-round", 96), ("hqq", 48), ("torchao int4", 96),
     ("mxfp4", 96), ("fp8 blocks", 48), ("modelopt nvfp4", 48), ("nf4", 192), ("qqq", 384),
     ("marlin, a group a rank", 384), ("marlin_24, a group a rank", 384), ("gguf Q8_0", 96)],
)  # fmt: skip
def test_groups_across_ranks_are_refused(name: str, size: int) -> None:
    with pytest.raises(
        ConfigError, match=r"inputs of a group are on several|rank's \d+ inputs do not divide"
    ):
        case = replace(CASES[name], size=size)
        layers(case, RANKS[0], [n for n in names_of(case) if n in SUMMED])


def test_words_across_ranks_are_refused() -> None:
    """Zero points of 16 outputs a head, 3 bits each: one and a half words of 32."""
    case = replace(CASES["gptq 3 bits"], size=64)
    with pytest.raises(ConfigError, match=r"ends inside a packed entry, after 3/2 "):
        check(case, random_tensors(case))
