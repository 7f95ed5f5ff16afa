"""Writes checkpoints of a tiny random Llama whose layers other libraries quantized.

bitsandbytes 0.50.2, hqq 0.2.8, torchao 0.18, aqlm 1.1.7 and nvidia-modelopt 0.47 made the layers
and say which matrices they mean; none is installed for the tests. Beside each checkpoint lies
logits.safetensors: `token_ids` and the `logits` of transformers with those matrices in float32.
aqlm's codes are random: its library reads such layers only.
Run: python tests/data/quantized/write_layers.py [NAME ...]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint

HERE = Path(__file__).parent
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,  # bitsandbytes undoes no blocks that run over rows on CPUs
    "num_hidden_layers": 1,
    "tie_word_embeddings": True,
}
TOKENS = 12
Made = tuple[dict[str, torch.Tensor], torch.Tensor]
"""A layer's tensors by their last names, and the matrix they mean."""


def bitsandbytes_4(layer: torch.nn.Linear, kind: str, is_nested: bool) -> Made:
    import bitsandbytes
    from bitsandbytes.functional import dequantize_4bit

    made = bitsandbytes.nn.Linear4bit(
        layer.in_features, layer.out_features, bias=False, quant_type=kind,
        compress_statistics=is_nested, compute_dtype=torch.float32,
    )  # fmt: skip
    made.load_state_dict({"weight": layer.weight.data.float()}, strict=False)
    made = made.to("cpu")
    meant = dequantize_4bit(made.weight.data, made.weight.quant_state)
    return dict(made.state_dict()), meant


def bitsandbytes_8(layer: torch.nn.Linear) -> Made:
    import bitsandbytes

    made = bitsandbytes.nn.Linear8bitLt(
        layer.in_features, layer.out_features, bias=False, has_fp16_weights=False
    )
    made.load_state_dict({"weight": layer.weight.data.half()}, strict=False)
    made = made.to("cpu")
    tensors = dict(made.state_dict())
    return tensors, bitsandbytes.functional.int8_vectorwise_dequant(
        tensors["weight"], tensors["SCB"]
    )


def hqq(layer: torch.nn.Linear, **params: Any) -> Made:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    told = BaseQuantizeConfig(**params)
    made = HQQLinear(layer, told, compute_dtype=torch.float16, device="cpu", del_orig=False)
    return dict(made.state_dict()), made.dequantize()


def torchao(layer: torch.nn.Linear, config: Any) -> Made:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_

    holder = torch.nn.Sequential(layer.float())
    quantize_(holder, config)
    flat, _ = flatten_tensor_state_dict(holder.state_dict())
    return {name.removeprefix("0."): t for name, t in flat.items()}, holder[0].weight.dequantize()


def aqlm(layer: torch.nn.Linear, books: int, bits: int) -> Made:
    from aqlm.utils import _dequantize_weight, unpack_int_data

    outputs, inputs = layer.weight.shape
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    dtype = torch.int8 if bits <= 8 else torch.int16
    codes = torch.randint(low, high, (outputs, inputs // 8, books)).to(dtype)
    tensors = {
        "codes": codes,
        "codebooks": (torch.randn(books, 2**bits, 1, 8) / 8).half(),
        "scales": (torch.rand(outputs, 1, 1, 1) + 0.5).half(),
    }
    meant = _dequantize_weight(
        unpack_int_data(codes, bits), tensors["codebooks"].float(), tensors["scales"].float()
    )
    return tensors, meant


def _bnb(**told: Any) -> dict[str, Any]:
    return transformers.BitsAndBytesConfig(**told).to_dict()


def _hqq(**told: Any) -> dict[str, Any]:
    return transformers.HqqConfig(**told).to_dict()


def _ao(config: Any) -> dict[str, Any]:
    from torchao.core.config import config_to_dict

    return {"quant_method": "torchao", "quant_type": {"default": config_to_dict(config)}}


def _aqlm(books: int, bits: int) -> dict[str, Any]:
    return {"quant_method": "aqlm", "in_group_size": 8, "out_group_size": 1,
            "num_codebooks": books, "nbits_per_codebook": bits,
            "linear_weights_not_to_quantize": ["lm_head.weight"]}  # fmt: skip


def cases() -> dict[str, tuple[Callable[[torch.nn.Linear], Made], dict[str, Any]]]:
    """Return what makes the layers of each checkpoint, and its quantization_config."""
    four = {"load_in_4bit": True, "bnb_4bit_compute_dtype": "float32"}
    made: dict[str, Any] = {
        "bitsandbytes_nf4": (
            partial(bitsandbytes_4, kind="nf4", is_nested=True),
            partial(_bnb, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, **four),
        ),
        "bitsandbytes_fp4": (
            partial(bitsandbytes_4, kind="fp4", is_nested=False),
            partial(_bnb, bnb_4bit_quant_type="fp4", **four),
        ),
        "bitsandbytes_int8": (bitsandbytes_8, partial(_bnb, load_in_8bit=True)),
        "aqlm": (partial(aqlm, books=2, bits=6), partial(_aqlm, 2, 6)),
    }
    for name, bits, group, axis in (
        ("hqq_4", 4, 32, 1), ("hqq_8", 8, 32, 1), ("hqq_3", 3, 32, 1), ("hqq_4_axis_0", 4, 64, 0),
    ):  # fmt: skip
        told = {"nbits": bits, "group_size": group, "axis": axis}
        made[name] = (partial(hqq, **told), partial(_hqq, **told))
    for name, config in _torchao_configs().items():
        made[name] = (partial(torchao, config=config), partial(_ao, config))
    return made


def _torchao_configs() -> dict[str, Any]:
    try:
        import torchao.quantization as ao
    except ImportError:
        return {}
    return {
        "torchao_int8": ao.Int8WeightOnlyConfig(),
        "torchao_float8": ao.Float8WeightOnlyConfig(),
        "torchao_int4": ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=ao.PerGroup(32)
        ),
    }


def modelopt(folder: Path, algorithm: str, token_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Write what modelopt exports; return the matrices its tensor classes make of that."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    source = write_tiny_checkpoint(folder / "source", "LlamaForCausalLM", **SIZES)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    told = {"fp8": mtq.FP8_DEFAULT_CFG, "nvfp4": mtq.NVFP4_DEFAULT_CFG}[algorithm]
    model = mtq.quantize(model, told, lambda m: m(token_ids.unsqueeze(0)))
    export_hf_checkpoint(model, export_dir=folder / "written")
    tensors = load_file(folder / "written" / "model.safetensors")
    meant = {}
    for name, values in tensors.items():
        scale = tensors.get(f"{name}_scale")
        if scale is not None and algorithm == "fp8":
            made = FP8QTensor(values.shape, torch.float32, values)
            meant[name] = made.dequantize(scale=scale, block_sizes=None)
        elif scale is not None:
            shape = torch.Size((values.shape[0], values.shape[1] * 2))
            meant[name] = NVFP4QTensor(shape, torch.float32, values).dequantize(
                scale=scale, double_scale=tensors[f"{name}_scale_2"], block_sizes={-1: 16}
            )
    return meant


def write(name: str, folder: Path, token_ids: torch.Tensor) -> None:
    """Write one checkpoint and its logits."""
    source = write_tiny_checkpoint(folder / "source", "LlamaForCausalLM", **SIZES)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    fresh = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16).float()
    make, told = cases()[name]
    tensors = {k: v for k, v in model.state_dict().items() if not k.endswith("proj.weight")}
    tensors.pop("lm_head.weight")
    for path, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear) or path == "lm_head":
            continue
        made, meant = make(layer)
        tensors |= {f"{path}.{leaf}": t.contiguous() for leaf, t in made.items() if t is not None}
        fresh.get_submodule(path).weight.data.copy_(meant)
    finish(name, tensors, {**read(source), "quantization_config": told()}, token_ids, fresh)


def finish(
    name: str,
    tensors: dict[str, torch.Tensor],
    config: dict[str, Any],
    token_ids: torch.Tensor,
    fresh: Any,
) -> None:
    """Write a checkpoint's files. Mutates: the folder `name`"""
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    with torch.no_grad():
        logits = fresh(token_ids.unsqueeze(0)).logits[0].clone()
    save_file({"token_ids": token_ids, "logits": logits}, target / "logits.safetensors")
    print(name, config["quantization_config"])


def read(folder: Path) -> dict[str, Any]:
    """Return a folder's config."""
    found = json.loads((folder / "config.json").read_text())
    assert isinstance(found, dict)
    return found


def write_modelopt(name: str, folder: Path, token_ids: torch.Tensor) -> None:
    """Write modelopt's export and its logits."""
    meant = modelopt(folder, name.removeprefix("modelopt_"), token_ids)
    written = folder / "written"
    tensors = load_file(next(written.glob("*.safetensors")))
    fresh = transformers.AutoModelForCausalLM.from_pretrained(folder / "source").float()
    fresh.load_state_dict(meant, strict=False)
    finish(name, tensors, read(written), token_ids, fresh)
    shutil.copy(written / "hf_quant_config.json", HERE / name)


def main() -> None:
    """Write the cases that the command line names, or all."""
    torch.manual_seed(0)
    token_ids = torch.randint(3, VOCAB_SIZE, (TOKENS,))
    for name in sys.argv[1:] or [*cases(), "modelopt_fp8", "modelopt_nvfp4"]:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(1)
            is_whole = name.startswith("modelopt")
            (write_modelopt if is_whole else write)(name, Path(folder), token_ids)


if __name__ == "__main__":
    main()
