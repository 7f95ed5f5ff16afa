"""Families whose layers are put together in a way of their own compute on two ranks, and on two
stages, what they compute on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail_testing.harness import PagedModel, StagedModel, load_model
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.thread_ranks import DividedModel

TOLERANCE = 1e-4
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one norm over all heads": ("Olmo2ForCausalLM", {}),
    "the same, one KV head on both ranks": ("Olmo3ForCausalLM", {"num_key_value_heads": 1}),
    "bounds and bare norms": ("OlmoForCausalLM", {}),
    "a norm for each head": ("CohereForCausalLM", {}),
    "the same, stored apart": (
        "StableLmForCausalLM",
        {"qk_layernorm": True, "use_parallel_residual": True, "num_key_value_heads": 1},
    ),
    "norms without positions": ("Exaone4ForCausalLM", {}),
    "norms behind the rotation": ("HunYuanDenseV1ForCausalLM", {}),
    "scaled branches": ("GraniteForCausalLM", {}),
    "q, k and v head by head": ("GPTNeoXForCausalLM", {}),
    "one KV head, learned positions": ("GPTBigCodeForCausalLM", {}),
    "a head with a bias": ("PhiForCausalLM", {"qk_layernorm": True}),
    "no gate, norms from one": ("NemotronForCausalLM", {"mlp_bias": True}),
    "four norms, gate and up in one": ("Glm4ForCausalLM", {}),
    "a learned activation": ("ApertusForCausalLM", {}),
    "channels with states, and experts": ("JambaForCausalLM", {}),
    "heads with states, and shared experts": ("GraniteMoeHybridForCausalLM", {}),
    "states that forget at slopes": ("MiniMaxForCausalLM", {}),
    "the delta rule, keys that turn values around": ("OlmoHybridForCausalLM", {}),
    "the delta rule by channel, and latents": ("KimiLinearForCausalLM", {}),
    "two latents a block, experts that do not compute": ("LongcatFlashForCausalLM", {}),
    "bounded decays, latents with gates": ("BailingHybridForCausalLM", {}),
    "heads and norms with gates": ("AXK2ForCausalLM", {}),
    "picked blocks": ("MiniMaxM3VLForCausalLM", {"index_topk_blocks": 2}),
    "latents with sinks, and streams": ("HYV4ForCausalLM", {"index_topk": 8, "index_n_heads": 8}),
    "latents in windows, and gates": (
        "Dots3NoteForCausalLM",
        {"num_hidden_layers": 2, "layer_types": ["indexed_attention", "sliding_attention"]},
    ),
    "entries of several tokens": (
        "DeepseekV4ForCausalLM",
        {
            "num_hidden_layers": 2,
            "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
            "mlp_layer_types": ["moe", "hash_moe"],
        },
    ),
    "one matrix of all inputs": (
        "LaraMiniForCausalLM",
        {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "norms behind scaled branches": ("HyperCLOVAXForCausalLM", {}),
    "positions by sines": ("XGLMForCausalLM", {}),
    "a gate for each head": (
        "Lfm3ForCausalLM",
        {"num_hidden_layers": 2, "layer_types": ["conv", "sliding_attention"]},
    ),
    "q, k and v apart, local and global": ("GPTNeoForCausalLM", {}),
    "a state beside keys and values": ("FalconH1ForCausalLM", {}),
    "experts without a gate, behind a latent": (
        "NemotronHForCausalLM",
        {"layers_block_type": ["linear_attention", "moe"]},
    ),
    "convolutions, and corrected experts": ("Lfm2MoeForCausalLM", {}),
    "gates block by block": ("RecurrentGemmaForCausalLM", {}),
    "memories of matrices": ("xLSTMForCausalLM", {}),
    "averages by channel": ("RwkvForCausalLM", {"rescale_every": 1}),
}
PROMPT = torch.randint(3, VOCAB_SIZE, (15,), generator=torch.Generator().manual_seed(15)).tolist()


def pieces(model: PagedModel | StagedModel | DividedModel) -> torch.Tensor:
    """Return the logits of a prompt in pieces."""
    cuts = ((0, 9), (9, 14), (14, 15))
    return torch.cat([model.forward([(0, PROMPT[a:b])])[0] for a, b in cuts])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", CASES)
def test_ranks_and_stages_compute_as_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, fields = CASES[case]
    path = write_tiny_checkpoint(tmp_path, family, **fields)
    alone = pieces(PagedModel(load_model(path)))
    divided = pieces(DividedModel(path, 2, monkeypatch))
    assert (divided - alone).abs().max() <= TOLERANCE
    staged = StagedModel(lambda rank: load_model(path, rank=rank), (1, 1))
    assert torch.equal(pieces(staged), alone)


def test_what_routers_remember_goes_from_stage_to_stage(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "ZayaForCausalLM")
    alone = pieces(PagedModel(load_model(path)))
    staged = StagedModel(lambda rank: load_model(path, rank=rank), (1, 2))
    assert torch.equal(pieces(staged), alone)


@pytest.mark.parametrize("family", ["ZambaForCausalLM", "Zamba2ForCausalLM"])
def test_blocks_that_layers_share_are_on_every_stage(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as its layers call them, each with the adapters and caches of its own calls."""
    path = write_tiny_checkpoint(tmp_path, family)
    alone = pieces(PagedModel(load_model(path)))
    divided = pieces(DividedModel(path, 2, monkeypatch))
    assert (divided - alone).abs().max() <= TOLERANCE
    for layers in ((2, 2), (1, 2, 1)):
        staged = StagedModel(lambda rank: load_model(path, rank=rank), layers)
        assert torch.equal(pieces(staged), alone)
