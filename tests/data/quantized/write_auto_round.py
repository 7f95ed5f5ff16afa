"""Writes the checkpoints of this folder that AutoRound makes: a tiny random Llama, once a format.

Beside each lie logits.safetensors: `token_ids` and the `logits` of the library's own packed layers
in float32. Written with auto-round 0.16.1, torch 2.13 and transformers 5.23; it is not
installed for the tests. Run: python tests/data/quantized/write_auto_round.py [NAME ...]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from auto_round import AutoRound
from safetensors.torch import load_file, save_file

from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint

HERE = Path(__file__).parent
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
KEPT = ("config.json", "model.safetensors")
LATER = {
    "model.layers.0.mlp.gate_proj": {"bits": 8},
    "model.layers.0.mlp.up_proj": {"bits": 8},
    "model.layers.0.self_attn.o_proj": {"bits": 16},
}
CASES: dict[str, dict[str, Any]] = {
    "gptq": {"format": "auto_gptq", "bits": 4, "sym": False},
    "gptq_dynamic": {"format": "auto_gptq", "bits": 4, "sym": True, "layer_config": LATER},
    "gptq_3_bits": {"format": "auto_gptq", "bits": 3, "sym": True},
    "awq": {"format": "auto_awq", "bits": 4, "sym": False},
    "auto_round_gptq": {
        "format": "auto_round",
        "bits": 2,
        "sym": False,
        "layer_config": {**LATER, "lm_head": {"bits": 4}},
    },
}
TOKENS = 12


def main() -> None:
    """Write the cases that the command line names, or all."""
    torch.manual_seed(0)
    token_ids = torch.randint(3, VOCAB_SIZE, (TOKENS,))
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            write(name, Path(folder), token_ids, **CASES[name])


def write(name: str, folder: Path, token_ids: torch.Tensor, *, format: str, **scheme: Any) -> None:
    """Write one checkpoint and its logits."""
    is_tied = "lm_head" not in scheme.get("layer_config", {})
    source = write_tiny_checkpoint(
        folder / "source", "LlamaForCausalLM", tie_word_embeddings=is_tied, **SIZES
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    rounder = AutoRound(
        model,
        tokenizer,
        group_size=32,
        iters=0,
        disable_opt_rtn=True,
        nsamples=1,
        seqlen=8,
        **scheme,
    )
    rounder.quantize()
    packed = rounder.save_quantized(folder / "written", format=format, inplace=True)
    fresh = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    logits = logits_of(fresh.float(), packed, token_ids)
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    written = next((folder / "written").rglob("model.safetensors")).parent
    for file in KEPT:
        shutil.copy(written / file, target / file)
    narrow(target / KEPT[1], is_tied=is_tied)
    save_file({"token_ids": token_ids, "logits": logits}, target / "logits.safetensors")
    print(name, json.loads((target / "config.json").read_text())["quantization_config"])


@torch.no_grad()
def logits_of(fresh: Any, packed: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of a fresh float32 model that has every packed layer's matrix as the layer
    itself multiplies it. Shapes: [T] -> [T, V]. Mutates: fresh, packed"""
    for name, layer in packed.named_modules():
        if "qweight" not in dict(layer.named_buffers()):
            continue
        layer._buffers.pop("g_idx", None)  # in place; with it the library wants as many outputs
        plain = fresh.get_submodule(name)
        if hasattr(layer, "infeatures"):  # of the GPTQ kind: takes float32, AWQ's float16 alone
            layer.float()
        plain.weight.copy_(layer.eval()(torch.eye(plain.in_features)).T)
    return fresh(token_ids.unsqueeze(0)).logits[0].clone()


def narrow(file: Path, *, is_tied: bool) -> None:
    """Make a file float16 again, which its weights were, and drop the copy of a tied table."""
    tensors = load_file(file)
    if is_tied:
        tensors.pop("lm_head.weight", None)
    kept = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    save_file(kept, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
