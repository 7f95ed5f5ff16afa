"""The text part of Hunyuan 4 against transformers, and names of released checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.families import COMMON, FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import randomize, write_tiny_checkpoint

TOKENS = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(2)).tolist()
SPARSE = {"index_topk": 8, "index_n_heads": 8}


def test_the_text_part_of_a_checkpoint_with_an_encoder(tmp_path: Path) -> None:
    _, fields = FAMILIES["HYV4ForCausalLM"]
    rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1]}
    config = transformers.HYV4VLConfig(
        text_config={**COMMON, **fields, **SPARSE, "rms_norm_eps": 1e-3, "rope_parameters": rope},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 8,
            "max_image_size": 32,
        },
    )
    model = transformers.HYV4VLForConditionalGeneration(config)
    randomize(model, seed=3)
    model.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        wanted = theirs.eval()(input_ids=torch.tensor([TOKENS])).logits[0]
    ours = PagedModel.load(tmp_path)
    found = [ours.forward([(0, TOKENS[a:b])])[0] for a, b in ((0, 20), (20, 21), (21, 40))]
    assert (torch.cat(found) - wanted).abs().max() < 1e-4


RELEASED = {
    ".mlp.linear_gate.": ".mlp.gate_proj.",  # as transformers saves an MLP's gate
    ".shared_experts.linear_gate.": ".shared_experts.gate_proj.",
}


@pytest.mark.parametrize("is_released", [True, False])
def test_names_of_released_checkpoints_and_of_transformers(
    tmp_path: Path, is_released: bool
) -> None:
    path = write_tiny_checkpoint(tmp_path, "HYV4ForCausalLM")
    wanted = PagedModel.load(path).forward([(0, TOKENS)])[0]
    tensors = load_file(path / "model.safetensors")
    assert any(".self_attn.linear_gate." in name for name in tensors)
    if is_released:
        for old, new in RELEASED.items():
            tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    else:
        model = transformers.HYV4ForCausalLM.from_pretrained(path, dtype=torch.float32)
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        tensors = {name: t for name, t in tensors.items() if ".experts.gate_up_proj" not in name}
        stored = load_file(path / "model.safetensors")
        experts = {n: t for n, t in stored.items() if ".mlp.experts." in n}
        tensors = {n: t for n, t in tensors.items() if ".mlp.experts." not in n} | experts
    tensors["model.mtp_layers.0.enorm.weight"] = torch.ones(32)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(PagedModel.load(path).forward([(0, TOKENS)])[0], wanted)
