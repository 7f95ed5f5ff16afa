"""Checkpoint names reach parameters: fused, joined, transposed, tied, divided; faults are told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import (
    GROUPS,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from dovetail.layers.linear.borrowing import may_borrow
from dovetail.layers.linear.placement import WeightHolder
from dovetail.layers.logits import LogitsHead
from dovetail.layers.moe.experts import Experts
from dovetail.layers.norm import RMSNorm
from dovetail.layers.weights import checkpoint_shapes, load_weights
from dovetail_testing.contract import model_spec
from dovetail_testing.tiny.transformer import PlainWeights

SPEC = model_spec(hidden_size=8, vocab_size=11)
CONTEXT = BuildContext(model=SPEC, quant=PlainWeights(None, SPEC), device="cpu")
MAP = WeightMap(
    prefixes=(("model.", ""),),
    fused={
        "q_proj": ("qkv", "q"),
        "k_proj": ("qkv", "k"),
        "v_proj": ("qkv", "v"),
        "gate_proj": ("gate_up_proj", "gate"),
        "up_proj": ("gate_up_proj", "up"),
    },
    transposed=("down.weight",),
    ignored=("inv_freq",),
    tied={"head.weight": "embed.weight"},
)


class Toy(nn.Module):
    """One of each layer."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        self.embed = VocabParallelEmbedding(context, 11, 8)
        self.qkv = QKVParallelLinear(
            context, "qkv", 8, num_heads=4, num_kv_heads=2, head_size=2, bias=True
        )
        self.mlp = MergedColumnParallelLinear(context, "mlp", 8, {"gate": 6, "up": 6})
        self.down = RowParallelLinear(context, "down", 6, 8, bias=True)
        self.experts = Experts(context, "experts", num_experts=2, size=8, inner=4, act="silu")
        self.norm = RMSNorm(context, 8, eps=1e-6)
        self.head = LogitsHead(context, "head", 11, 8, tied=self.embed)


def checkpoint() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {
        "model.embed.weight": (11, 8),
        "q_proj.weight": (8, 8),
        "k_proj.weight": (4, 8),
        "v_proj.weight": (4, 8),
        "q_proj.bias": (8,),
        "k_proj.bias": (4,),
        "v_proj.bias": (4,),
        "mlp.weight": (12, 8),
        "down.weight": (6, 8),
        "down.bias": (8,),
        "norm.weight": (8,),
        "rotary.inv_freq": (3,),
    }
    for expert in range(2):
        shapes |= {f"experts.{expert}.{n}_proj.weight": (4, 8) for n in ("gate", "up")}
        shapes[f"experts.{expert}.down_proj.weight"] = (8, 4)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def filled(rank: RankSpec | None = None, tensors: dict[str, torch.Tensor] | None = None) -> Toy:
    toy = Toy(replace(CONTEXT, rank=rank or RankSpec()))
    load_weights(toy, MAP, (tensors or checkpoint()).items())
    return toy


def test_every_piece_lies_in_its_place() -> None:
    given, toy = checkpoint(), filled()
    qkv = torch.cat([given[f"{n}_proj.weight"] for n in "qkv"])
    assert torch.equal(toy.qkv.get_parameter("weight"), qkv)
    assert torch.equal(toy.get_parameter("mlp.weight"), given["mlp.weight"])
    assert torch.equal(toy.get_parameter("down.weight"), given["down.weight"].t())
    assert torch.equal(
        toy.experts.gate_up_proj[1],
        torch.cat([given[f"experts.1.{n}_proj.weight"] for n in ("gate", "up")]),
    )
    assert torch.equal(toy.experts.down_proj[0], given["experts.0.down_proj.weight"])


def test_ranks_hold_parts_that_join_to_the_whole() -> None:
    given = checkpoint()
    ranks = [RankSpec(rank=r, world_size=2, tensor_rank=r, tensor_size=2) for r in (0, 1)]
    one, two = (filled(rank) for rank in ranks)
    assert torch.equal(
        torch.cat([one.embed.weight, two.embed.weight])[:11], given["model.embed.weight"]
    )
    weights = [toy.qkv.get_parameter("weight").split([4, 2, 2]) for toy in (one, two)]
    for name, low, high in zip("qkv", *weights, strict=True):
        assert torch.equal(torch.cat([low, high]), given[f"{name}_proj.weight"])
    gates = [toy.get_parameter("mlp.weight").chunk(2) for toy in (one, two)]
    joined = torch.cat([gates[0][0], gates[1][0], gates[0][1], gates[1][1]])
    assert torch.equal(joined, given["mlp.weight"])
    downs = [toy.get_parameter("down.weight") for toy in (one, two)]
    assert torch.equal(torch.cat(downs, dim=1), given["down.weight"].t())
    assert torch.equal(
        torch.cat([one.experts.down_proj, two.experts.down_proj], dim=2)[1],
        given["experts.1.down_proj.weight"],
    )


class Packing(nn.Module):
    """A layer that borrows what fills it, and packs it as soon as it is full."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.down = RowParallelLinear(CONTEXT, "down", 6, 8, bias="bias" in names)
        may_borrow(self.down.get_parameter("weight"))
        self.seen: list[int] = []

    def pack(self, holder: WeightHolder) -> None:
        self.seen.append(holder.get_parameter("weight").data_ptr())
        if "weight" in dict(holder.named_parameters()):
            del holder.weight


def test_a_tensor_is_packed_from_where_it_lies() -> None:
    lies = {"down.weight": torch.randn(8, 6)}
    layer = Packing()
    load_weights(layer, WeightMap(), lies.items(), finish=layer.pack)
    assert layer.seen == [lies["down.weight"].data_ptr()]


@pytest.mark.parametrize("order", [("weight", "bias"), ("bias", "weight")])
def test_a_reader_may_use_its_memory_again(order: tuple[str, str]) -> None:
    torch.manual_seed(0)
    given = {"down.weight": torch.randn(8, 6), "down.bias": torch.randn(8)}
    values: list[torch.Tensor] = []

    def reader() -> Iterator[tuple[str, torch.Tensor]]:
        for name in order:
            lent = given[f"down.{name}"].clone()
            yield f"down.{name}", lent
            lent.zero_()

    def pack(holder: WeightHolder) -> None:
        values.append(holder.get_parameter("weight").clone())

    layer = Packing("bias")
    load_weights(layer, WeightMap(), reader(), finish=pack)
    (packed,) = values
    assert torch.equal(packed, given["down.weight"])
    assert torch.equal(layer.down.get_parameter("weight"), given["down.weight"])


@pytest.mark.parametrize(
    "other", [torch.randn(8, 6).half(), torch.randn(6, 8).t(), torch.randn(1, 8, 6)]
)
def test_what_does_not_fit_is_copied(other: torch.Tensor) -> None:
    layer = Packing()
    load_weights(layer, WeightMap(), [("down.weight", other)], finish=layer.pack)
    assert (layer.seen == [other.data_ptr()]) is (other.dim() == 3)


def test_kv_heads_are_repeated_when_ranks_outnumber_them() -> None:
    given = checkpoint()
    for tensor_rank in range(4):
        rank = RankSpec(rank=tensor_rank, world_size=4, tensor_rank=tensor_rank, tensor_size=4)
        layer = QKVParallelLinear(
            replace(CONTEXT, rank=rank), "qkv", 8, num_heads=4, num_kv_heads=2, head_size=2
        )
        pieces = [
            (f"qkv.{n}", given[f"{n[0]}_proj.weight"]) for n in ("q_proj", "k_proj", "v_proj")
        ]
        holder = nn.ModuleDict({"qkv": layer})
        load_weights(holder, MAP, [(f"{n.split('.')[1]}.weight", t) for n, t in pieces])
        head = tensor_rank // 2
        _, k, _ = layer.get_parameter("weight").split([2, 2, 2])
        assert torch.equal(k, given["k_proj.weight"][2 * head : 2 * head + 2])


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_queries_keys_and_values_stored_by_group(num_ranks: int) -> None:
    """Each kv head's queries, key and value behind each other: the same as one tensor for each."""
    given = checkpoint()
    q, k, v = (given[f"{name}_proj.weight"] for name in "qkv")
    groups = [x.view(2, -1, 8) for x in (q, k, v)]
    stored = {"wqkv.weight": torch.cat(groups, dim=1).reshape(16, 8)}
    apart = {f"{name}_proj.weight": given[f"{name}_proj.weight"] for name in "qkv"}
    names = replace(MAP, fused={**MAP.fused, "wqkv": ("qkv", GROUPS)})
    for place in range(num_ranks):
        rank = RankSpec(rank=place, world_size=num_ranks, tensor_rank=place, tensor_size=num_ranks)
        context, weights = replace(CONTEXT, rank=rank), []
        for tensors in (stored, apart):
            layer = QKVParallelLinear(context, "qkv", 8, num_heads=4, num_kv_heads=2, head_size=2)
            load_weights(nn.ModuleDict({"qkv": layer}), names, tensors.items())
            weights.append(layer.get_parameter("weight"))
        assert torch.equal(*weights)


def test_what_a_model_wants_fills_it() -> None:
    toy = Toy(CONTEXT)
    wanted = checkpoint_shapes(toy, MAP)
    assert wanted["qkv.weight"] == ((16, 8), "float32")
    assert wanted["down.weight"] == ((6, 8), "float32")
    assert "head.weight" not in wanted
    load_weights(toy, MAP, ((name, torch.zeros(shape)) for name, (shape, _) in wanted.items()))


@pytest.mark.parametrize("order", ["alias first", "alias last"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_tied_parameter_under_both_names_is_one_tensor(order: str, ranks: int) -> None:
    given = checkpoint()
    whole = given["model.embed.weight"]
    assert whole.shape == (11, 8)
    changed = whole.clone()
    changed[-1, -1] += 1  # a row of the last rank
    rank = RankSpec(tensor_rank=ranks - 1, rank=ranks - 1, world_size=ranks, tensor_size=ranks)
    for alias in (whole.clone(), changed):
        named = {"head.weight": alias}
        tensors = {**named, **given} if order == "alias first" else {**given, **named}
        if alias is changed:
            with pytest.raises(ConfigError, match=r"embed.weight.*tie_word_embeddings"):
                filled(rank, tensors=tensors)
        else:
            first = 6 * (ranks - 1)
            held = filled(rank, tensors=tensors).embed.weight
            assert torch.equal(held[: 11 - first], whole[first:][: len(held)])


def test_two_names_of_a_weight_hold_the_same_values() -> None:
    given = checkpoint()
    again = given["model.embed.weight"].clone()
    filled(tensors=given | {"embed.weight": again})
    with pytest.raises(ConfigError, match=r"model\.embed\.weight and embed\.weight"):
        filled(tensors=given | {"embed.weight": again + 1})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"k_proj.weight": None}, r"1 missing: qkv\.weight \(k\)"),
        ({"norm.weight": None}, r"1 missing: norm\.weight"),
        ({"experts.1.up_proj.weight": None}, r"experts\.gate_up_proj \(1\.up\)"),
        ({"stray.weight": torch.zeros(1)}, r"1 unexpected: stray\.weight"),
        ({"experts.2.up_proj.weight": torch.zeros(4, 8)}, r"unexpected: experts\.2"),
        ({"v_proj.weight": torch.zeros(5, 8)}, r"v_proj\.weight: shape \[5, 8\].*\[4, 8\]"),
        ({"mlp.weight": torch.zeros(13, 8)}, r"mlp\.weight: shape \[13, 8\]"),
        ({"norm.weight": torch.zeros(8, dtype=torch.int8)}, r"dtype int8"),
    ],
)
def test_faults_are_listed(change: dict[str, torch.Tensor | None], told: str) -> None:
    tensors = {k: v for k, v in {**checkpoint(), **change}.items() if v is not None}
    with pytest.raises(ConfigError) as raised:
        filled(tensors=tensors)
    assert re.search(told, str(raised.value))


def test_uneven_division_names_the_flag() -> None:
    rank = RankSpec(world_size=3, tensor_size=3)
    with pytest.raises(ConfigError, match="--tensor-parallel-size"):
        RowParallelLinear(replace(CONTEXT, rank=rank), "down", 8, 8)
