"""Families with experts compute on two ranks, whose experts are halves or whole, and on two stages,
what they compute on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.layers.moe.experts import Experts
from dovetail_testing.harness import PagedModel, StagedModel, load_model
from dovetail_testing.ranks import ODD_AND_EVEN
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support import thread_ranks
from support.thread_ranks import DividedModel

TOLERANCE = 1e-4
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "groups, a shared expert": ("Glm4MoeForCausalLM", {}),
    "norms over all heads, one KV head": ("MiniMaxM2ForCausalLM", {"num_key_value_heads": 1}),
    "chunks and weighed inputs": ("Llama4ForCausalLM", {}),
    "norms behind experts": ("FlexOlmoForCausalLM", {}),
    "gate and up of all experts in one": ("GraniteMoeSharedForCausalLM", {}),
    "sparsemixer, biases": ("PhimoeForCausalLM", {}),
    "a bias of the choice": ("Ernie4_5_MoeForCausalLM", {}),
    "norms behind the rotation": ("HunYuanMoEV1ForCausalLM", {}),
}
PROMPT = torch.randint(3, VOCAB_SIZE, (15,), generator=torch.Generator().manual_seed(15)).tolist()


def pieces(model: PagedModel | StagedModel | DividedModel) -> torch.Tensor:
    """Return the logits of a prompt in pieces."""
    cuts = ((0, 9), (9, 14), (14, 15))
    return torch.cat([model.forward([(0, PROMPT[a:b])])[0] for a, b in cuts])


@pytest.mark.parametrize("case", CASES)
def test_ranks_and_stages_compute_as_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, fields = CASES[case]
    path = write_tiny_checkpoint(tmp_path, family, **fields)
    alone = pieces(PagedModel(load_model(path)))
    staged = StagedModel(lambda rank: load_model(path, rank=rank), (1, 1))
    assert torch.equal(pieces(staged), alone)
    assert (pieces(DividedModel(path, 2, monkeypatch)) - alone).abs().max() <= TOLERANCE
    loaded: list[torch.nn.Module] = []

    def placed(*given: Any, **more: Any) -> torch.nn.Module:
        loaded.append(load_model(*given, expert_placement=ODD_AND_EVEN, **more))
        return loaded[-1]

    monkeypatch.setattr(thread_ranks, "load_model", placed)
    assert (pieces(DividedModel(path, 2, monkeypatch)) - alone).abs().max() <= TOLERANCE
    held = [next(m for m in model.modules() if isinstance(m, Experts)) for model in loaded]
    assert [len(one.loaded) * 2 for one in held] == [one.num_experts for one in held]
