"""Layers put into encoders of transformers: each computes what it stands for, however x lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import activations
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.pixtral.modeling_pixtral import PixtralRMSNorm
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRMSNorm

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.weights import load_weights
from dovetail_plugins.layers.patches import Patches
from dovetail_plugins.models._hf_swap import swap_layers
from dovetail_plugins.models._tower_layers import TowerGatedMLP, TowerNorm, TowerRMSNorm, tower_norm
from dovetail_plugins.models._towers import swap_blocks, swap_rest
from dovetail_plugins.quantization.none import Unquantized
from dovetail_testing.tiny.transformer import tiny_run

SIZE, INNER = 32, 48


def context() -> BuildContext:
    model = tiny_run().model
    return BuildContext(model=model, quant=Unquantized(Unquantized.Options(), model), device="cpu")


class Gated(nn.Module):
    """A gated block as transformers writes them."""

    def __init__(self, act: nn.Module, *, biases: tuple[bool, bool, bool]) -> None:
        super().__init__()
        gate, up, down = biases
        self.gate_proj = nn.Linear(SIZE, INNER, bias=gate)
        self.up_proj = nn.Linear(SIZE, INNER, bias=up)
        self.down_proj = nn.Linear(INNER, SIZE, bias=down)
        self.act_fn = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        down: torch.Tensor = self.down_proj(gated)
        return down


class Adapter(nn.Module):
    """A plain block with an activation after its last matrix, too (Muse Glimmer)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(SIZE, INNER, bias=False)
        self.act = activations.GELUActivation()
        self.fc2 = nn.Linear(INNER, SIZE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.act(self.fc2(self.act(self.fc1(x))))
        return found


class Plain(Adapter):
    """A block whose activation a product can end in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc2(self.act(self.fc1(x)))
        return found


class Block(nn.Module):
    """All kinds of layers that are swapped."""

    def __init__(self, norm: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, SIZE, 4, 4)
        self.norm = norm
        self.mlp = mlp
        self.out = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.mlp(self.norm(x))  # which keeps the layout of x
        found: torch.Tensor = self.out(x)
        return found


def swapped(block: Block) -> Block:
    """Return the block with dovetail's layers, which are given its numbers."""
    tensors = [(name, value.detach().clone()) for name, value in block.named_parameters()]
    swap_blocks(context(), block, "")
    swap_layers(context(), block, "")
    swap_rest(context(), block, "")
    load_weights(block, WeightMap(), tensors)
    return block


def numbered(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def compared(block: Block) -> Block:
    """Return the block with dovetail's layers, which compute what its own did."""
    numbered(block)
    x = torch.randn(2, 3, 12, 8)
    with torch.inference_mode():
        wanted = block(x)
        found = swapped(block)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    return block


NORMS: list[tuple[Callable[[], nn.Module], type[nn.Module]]] = [
    (lambda: nn.LayerNorm(SIZE, eps=1e-6), TowerNorm),
    (lambda: nn.LayerNorm(SIZE, bias=False), TowerNorm),
    (lambda: nn.LayerNorm(SIZE, elementwise_affine=False), TowerNorm),
    (lambda: PixtralRMSNorm(SIZE, eps=1e-5), TowerRMSNorm),
    (lambda: Qwen2_5_VLRMSNorm(SIZE, eps=1e-6), TowerRMSNorm),
]
ACTS = [activations.SiLUActivation(), activations.GELUActivation(), activations.GELUTanh()]


@pytest.mark.parametrize(("norm", "made"), NORMS)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("biases", [(True, True, True), (False, False, True)])
def test_a_swapped_block_computes_the_same(
    norm: Callable[[], nn.Module], made: type[nn.Module], act: nn.Module, biases: Any
) -> None:
    block = compared(Block(norm(), Gated(act, biases=biases)))
    assert type(block.norm) is made
    assert (type(block.mlp), type(block.patches)) == (TowerGatedMLP, Patches)


@pytest.mark.parametrize(
    ("mlp", "left"),
    [(Plain, nn.Identity), (Adapter, activations.GELUActivation)],
)
def test_an_activation_is_fused_where_it_is_applied_once(
    mlp: type[Adapter], left: type[nn.Module]
) -> None:
    block = compared(Block(nn.LayerNorm(SIZE), mlp()))
    assert isinstance(block.mlp, Adapter)
    assert type(block.mlp.act) is left


@pytest.mark.parametrize(
    ("act", "biases"),
    [(nn.Tanh(), (True, True, True)), (activations.SiLUActivation(), (True, False, True))],
)
def test_a_block_that_no_gated_product_computes_keeps_its_way(act: nn.Module, biases: Any) -> None:
    block = compared(Block(nn.LayerNorm(SIZE), Gated(act, biases=biases)))
    assert type(block.mlp) is Gated


@pytest.mark.parametrize(
    "other",
    [
        lambda: Gemma3RMSNorm(SIZE),  # x / rms(x) * (1 + w)
        lambda: nn.LayerNorm((4, SIZE)),
        lambda: nn.GroupNorm(4, SIZE),
        lambda: nn.Linear(SIZE, SIZE),
    ],
)
def test_other_norms_are_left(other: Callable[[], nn.Module]) -> None:
    assert tower_norm(context(), numbered(other())) is None


def test_convolutions_in_lists_keep_their_class() -> None:
    """Parakeet masks what follows each `nn.Conv2d` of its list."""
    listed = nn.ModuleDict(
        {"layers": nn.ModuleList([nn.Conv2d(4, 4, 1)]), "one": nn.Conv2d(4, 4, 1)}
    )
    swap_rest(context(), listed, "")
    assert type(listed.get_submodule("layers.0")) is nn.Conv2d
    assert type(listed["one"]) is Patches
