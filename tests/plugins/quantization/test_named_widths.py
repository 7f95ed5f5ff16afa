"""Layers of another width, named in the config behind whichever prefix, as each tool writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail_testing.tiny.families import VOCAB_SIZE
from support.dequantized import found_logprobs, wanted_logprobs
from support.packed_layers import GROUP, as_gptq, eight_bit_gptq, eight_bit_matrix, four_bits
from support.tiny_media import write_media_checkpoint

pytestmark = pytest.mark.any_isa  # which layers have which codes: kernels are tried elsewhere

pytest.importorskip("PIL.Image", reason="Pillow is not installed")

EXACT = 1e-3
BITS = {"bits": 4, "group_size": GROUP}
PREFIXES = ("language_model.model.", "")
SIGHTED = "Qwen3VLForConditionalGeneration"
WIDE = ("layers.0.self_attn.o_proj", "layers.1.mlp.down_proj", "layers.1.self_attn.k_proj")
WIDER = {"bits": 8, "group_size": GROUP}


def is_text(layer: str) -> bool:
    return ".layers." in layer and "visual" not in layer and layer.endswith("_proj")


def written(folder: Path, config: dict[str, Any]) -> Any:
    """Write a checkpoint of 4 bits and, of some layers, 8; return transformers' model of it."""
    import transformers

    write_media_checkpoint(folder, SIGHTED, intermediate_size=64)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not is_text(layer):
            tensors[name] = tensor
            continue
        is_wide = layer.endswith(WIDE)
        made = (eight_bit_gptq if is_wide else as_gptq)(tensor)
        tensors |= {f"{layer}.{leaf}": one.contiguous() for leaf, one in made.items()}
        with torch.no_grad():
            meant = (eight_bit_matrix if is_wide else four_bits)(tensor)
            model.get_submodule(layer).weight.copy_(meant)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "quantization_config": config}))
    return model


def config_of(way: str, prefix: str) -> dict[str, Any]:
    names = [f"{prefix}{name}" for name in WIDE]
    dotted = [name.replace(".", r"\.") for name in names]
    ends = {rf"+:.*{name.replace('.', chr(92) + '.')}$": WIDER for name in WIDE}
    gptq = {"quant_method": "gptq", **BITS}
    blocks = {"block_name_to_quantize": f"{prefix}layers"}
    auto = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", **BITS}
    return {
        "gptq": gptq | {"dynamic": {f"+:{name}": WIDER for name in dotted}},
        "gptq ends": gptq | {"dynamic": ends},
        "auto-round": auto | blocks | {"extra_config": dict.fromkeys(names, WIDER)},
        "auto-round words": auto | {"extra_config": {rf".*{name}": WIDER for name in WIDE}},
    }[way]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("way", ["gptq", "gptq ends", "auto-round", "auto-round words"])
def test_widths_of_named_layers(way: str, prefix: str, tmp_path: Path) -> None:
    model = written(tmp_path / "m", config_of(way, prefix))
    prompts = [torch.randint(3, VOCAB_SIZE, (17,)).tolist()]
    wanted, deviation = wanted_logprobs(model, prompts)
    options = {"quantization": {"activations": "float"}}
    with LLM(
        str(tmp_path / "m"), dtype="float32", plugin_options=options, max_model_len=64,
        max_logprobs=-1,
    ) as llm:  # fmt: skip
        found = found_logprobs(llm, prompts)
    assert (found - wanted).abs().max() <= EXACT * max(deviation, 1)
