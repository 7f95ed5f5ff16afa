"""Writes checkpoints of a tiny random Llama in float8 with the scales of a KV cache.

compressed-tensors 0.20 and nvidia-modelopt 0.47 wrote them; neither is installed for the tests.
Only the names, shapes and values of the scales are looked at.
Run: python tests/data/kv_scales/write.py compressed_tensors|modelopt
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint

HERE = Path(__file__).parent
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}


def source() -> Any:
    """Return transformers' model in bfloat16."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_checkpoint(folder, "LlamaForCausalLM", head_dim=16)
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def compressed_tensors(out: Path) -> None:
    """Write what llm-compressor would: scales are set here, its calibration is another package."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    model = source()
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**FLOAT8))
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        ignore=["lm_head"],
        kv_cache_scheme=QuantizationArgs(**FLOAT8),
        quantization_status="frozen",
    )
    apply_quantization_config(model, config)
    for i, layer in enumerate(model.model.layers, start=1):
        layer.self_attn.k_scale.data.fill_(0.004 * i)
        layer.self_attn.v_scale.data.fill_(0.0015 * i)
        for name, parameter in layer.named_parameters():
            if name.endswith("weight_scale"):
                weight = layer.get_submodule(name.rpartition(".")[0]).weight
                parameter.data.fill_(weight.abs().max() / 448)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(out)
    compressor.update_config(out)


def modelopt(out: Path) -> None:
    """Write what modelopt exports after calibrating on random tokens."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model = source()
    rules = [*mtq.FP8_DEFAULT_CFG["quant_cfg"], *mtq.FP8_KV_CFG["quant_cfg"]]

    def calibrate(given: Any) -> None:
        for _ in range(4):
            given(torch.randint(VOCAB_SIZE, (1, 24)))

    mtq.quantize(model, {**mtq.FP8_DEFAULT_CFG, "quant_cfg": rules}, calibrate)
    export_hf_checkpoint(model, export_dir=str(out))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        target = HERE / name
        shutil.rmtree(target, ignore_errors=True)
        {"compressed_tensors": compressed_tensors, "modelopt": modelopt}[name](target)
        for file in target.iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                file.unlink()
