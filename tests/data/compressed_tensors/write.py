"""Writes the cases of this folder with the compressed-tensors library: the linear layers of a tiny
random Llama, once a format, and the logits of the library's own decompressed weights.

`base` holds what is in no case: config.json, embedding and norms. A case is a file NAME.safetensors
with the layers' tensors, `token_ids` and `logits`, and NAME.json, the quantization_config. Written
with compressed-tensors 0.20.0; the formats it no longer writes ("old") with 0.9.4. Neither is
installed for the tests. Run: python tests/data/compressed_tensors/write.py
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint

HERE = Path(__file__).parent
BASE = HERE / "base"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
TOKENS = 6
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKEN8 = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
Case = dict[str, Any]
CASES: dict[str, Case] = {
    "w4a16": {"format": "pack-quantized", "weights": INT4},
    "w4a16_zeros": {"format": "pack-quantized", "weights": {**INT4, "symmetric": False}},
    "w3a16": {"format": "pack-quantized", "weights": {**INT4, "num_bits": 3}},
    "w8a16": {"format": "pack-quantized", "weights": {**INT8, "symmetric": False}},
    "w8a8": {"format": "int-quantized", "weights": INT8, "input_activations": TOKEN8},
    "w8_tensor": {"format": "naive-quantized", "weights": {**INT8, "strategy": "tensor"}},
    "fp8": {"format": "float-quantized", "weights": FP8, "input_activations": FLOAT8},
    "fp8_tensor": {"format": "naive-quantized", "weights": {**FP8, "strategy": "tensor"}},
    "fp8_block": {
        "format": "float-quantized",
        "weights": {**FP8, "strategy": "block", "block_structure": [32, 32]},
        "input_activations": FLOAT8,
    },
    "nvfp4": {"format": "nvfp4-pack-quantized", "weights": FP4},
    "mxfp4": {
        "format": "mxfp4-pack-quantized",
        "weights": {**FP4, "strategy": "group", "group_size": 32},
    },
}
OLD: dict[str, Case] = {
    "act_order": {"format": "pack-quantized", "weights": {**INT4, "actorder": "group"}},
    "marlin_24": {"format": "marlin-24", "weights": {**INT8, "num_bits": 4}},
    "marlin_24_int8": {"format": "marlin-24", "weights": INT8},
    "sparse": {"format": "dense", "weights": None},
    "sparse_w8a8": {"format": "int-quantized", "weights": INT8, "input_activations": TOKEN8},
}


def main() -> None:
    """Write all cases that the installed version writes."""
    if not BASE.exists():
        write_base()
    is_old = version("compressed-tensors").startswith("0.9.")
    cases, write = (OLD, write_old) if is_old else (CASES, write_new)
    if is_old:
        write_groups()
    torch.manual_seed(0)
    token_ids = torch.randint(3, VOCAB_SIZE, (TOKENS,))
    for name, case in cases.items():
        model = load()
        config, tensors = write_layers(model, case, write)
        with torch.no_grad():
            logits = model(token_ids.unsqueeze(0)).logits[0].clone()
        (HERE / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(
            {**tensors, "token_ids": token_ids, "logits": logits}, HERE / f"{name}.safetensors"
        )
        print(name, {t.dtype for t in tensors.values()})


def write_base() -> None:
    """Write the model that all cases share, in float16."""
    write_tiny_checkpoint(BASE, "LlamaForCausalLM", **SIZES)
    file = BASE / "model.safetensors"
    tensors = {name: t.half() for name, t in load_file(file).items() if "_proj" not in name}
    save_file(tensors, file, metadata={"format": "pt"})
    for other in BASE.iterdir():
        if other.name not in ("config.json", file.name):
            other.unlink()


def load() -> Any:
    """Return the shared model in float32, with linear layers drawn from a seed."""
    model = transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float16).float()
    random = torch.Generator().manual_seed(1)
    for layer in model.model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data = torch.randn(layer.weight.shape, generator=random) / 5
    return model


def write_layers(model: Any, case: Case, write: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """Return the config and the tensors of all layers, whose weights become what those mean.

    Mutates: model
    """
    weights = case["weights"] and QuantizationArgs(**case["weights"])
    scheme = {k: v for k, v in case.items() if k != "format"}
    groups = {"group_0": {"targets": ["Linear"], **scheme}} if weights else {}
    config = QuantizationConfig(
        config_groups=groups, format=case["format"], ignore=["lm_head"]
    ).model_dump()
    config = json.loads(json.dumps(config, default=str)) | {"quant_method": "compressed-tensors"}
    tensors = {}
    for name, layer in model.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            stored, meant = write(layer.weight.data, weights, case, config)
            layer.weight.data = meant.float()
            tensors |= {f"model.{name}.{leaf}": t.contiguous() for leaf, t in stored.items()}
    return config, tensors


def scales_of(weight: torch.Tensor, args: QuantizationArgs, outer: Any = None) -> Any:
    """Return scales and zero points in the shapes of a strategy."""
    runs = weight
    if args.strategy in ("group", "tensor_group"):
        runs = weight.unflatten(1, (-1, args.group_size))
    if args.strategy == "block":
        rows, columns = args.block_structure
        runs = (
            weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).transpose(1, 2).flatten(2)
        )
    if args.strategy == "tensor":
        runs = weight.flatten()
    low, high = runs.amin(-1), runs.amax(-1)
    more = {} if outer is None else {"global_scale": outer}
    scales, zeros = calculate_qparams(low, high, args, **more)
    if args.strategy in ("channel", "tensor"):
        scales, zeros = scales.reshape(-1, 1), zeros.reshape(-1, 1)
    if args.strategy == "tensor":
        scales, zeros = scales.flatten(), zeros.flatten()
    return scales, zeros


def write_new(weight: torch.Tensor, args: QuantizationArgs, case: Case, config: Any) -> Any:
    """Return a layer's tensors and its decompressed weight."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import generate_gparam

    compressor = BaseCompressor.get_value_from_registry(case["format"])
    scheme = QuantizationScheme(targets=["Linear"], **case)
    outer = None
    if case["format"].startswith("nvfp4"):
        outer = generate_gparam(weight.amin().reshape(1), weight.amax().reshape(1))
    scales, zeros = scales_of(weight, args, outer)
    if not case["format"].startswith(("nvfp4", "mxfp4")):
        scales = scales.half()
    state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros.to(torch.int8)}
    if outer is not None:
        state["weight_global_scale"] = outer
    stored = compressor.compress(state, scheme)
    meant = compressor.decompress(dict(stored), scheme)["weight"]
    if outer is not None:
        meant = read_nvfp4(stored, args)
    if case["format"] == "float-quantized":
        stored["input_scale"] = torch.ones(1)
    return stored, meant


def read_nvfp4(stored: dict[str, torch.Tensor], args: QuantizationArgs) -> torch.Tensor:
    """Return what the library's decompressor does, which rounds to bfloat16, in float32."""
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    packed = stored["weight_packed"]
    rows, half = packed.shape
    return dequantize(
        x_q=unpack_fp4_from_uint8(packed, rows, 2 * half, dtype=torch.float32),
        scale=stored["weight_scale"].float(),
        args=args,
        global_scale=stored["weight_global_scale"],
        dtype=torch.float32,
    )


def write_old(weight: torch.Tensor, args: Any, case: Case, config: Any) -> Any:
    """Return the same with the compressors that later versions dropped. Mutates: config"""
    format = case["format"]
    if format != "pack-quantized":
        kept = weight.unflatten(1, (-1, 4)).abs().argsort(-1).argsort(-1) >= 2
        weight = weight * kept.flatten(1)
    weight = weight.half()
    if args is None:
        return write_mask(weight, config), weight
    scales, zeros = scales_of(weight.float(), args)
    scales, zeros, order = scales.half(), torch.zeros_like(zeros).half(), {}
    if args.actorder is not None:
        order["g_idx"] = (torch.randperm(weight.shape[1]) // args.group_size).int()
    forward = importlib.import_module("compressed_tensors.quantization.lifecycle.forward")
    meant = forward.fake_quantize(weight, scales, zeros, args, **order)
    if format == "int-quantized":
        values = forward.quantize(weight, scales, zeros, args, dtype=torch.int8)
        stored = {"weight_scale": scales, **write_mask(values, config)}
        # Read back: the library takes -128 for a small value (abs overflows) and may drop it.
        return stored, read_mask(stored).float() * scales.float()
    model = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
    model |= {f"weight_{name}": tensor for name, tensor in order.items()}
    name = "sparse_quantized_compressors.marlin_24"
    if format == "pack-quantized":
        name = "quantized_compressors.pack_quantized"
        model["weight_zero_point"] = zeros.to(torch.int8)
    compressors = importlib.import_module(f"compressed_tensors.compressors.{name}")
    plugin = vars(compressors).get("Marlin24Compressor") or compressors.PackedQuantizationCompressor
    stored = plugin().compress({f"a.{leaf}": t for leaf, t in model.items()}, {"a": args})
    kept = {leaf.removeprefix("a."): t for leaf, t in stored.items()}
    kept.pop("weight_zero_point", None)
    return kept, meant


def write_groups() -> None:
    """Write layers/marlin_24_groups.safetensors: one layer large enough for groups of 128."""
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(2)) / 5
    case = {"format": "marlin-24"}
    args = QuantizationArgs(**{**INT4, "group_size": 128})
    stored, meant = write_old(weight, args, case, {})
    (HERE / "layers").mkdir(exist_ok=True)
    save_file({**stored, "meant": meant}, HERE / "layers" / "marlin_24_groups.safetensors")


def read_mask(stored: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the matrix that the library makes of values and their bitmask."""
    from compressed_tensors.compressors.sparse_compressors import sparse_24_bitmask

    parts = {name: stored[name] for name in ("shape", "compressed", "bitmask")}
    return sparse_24_bitmask.Sparse24BitMaskTensor.from_compressed_data(**parts).decompress()


def write_mask(dense: torch.Tensor, config: Any) -> Any:
    """Return a 2:4 sparse matrix as its values and their bitmask. Mutates: config"""
    config["sparsity_config"] = {
        "format": "sparse-24-bitmask",
        "targets": ["Linear"],
        "ignore": ["lm_head"],
        "sparsity_structure": "2:4",
    }
    from compressed_tensors.compressors.sparse_compressors import sparse_24_bitmask

    made = sparse_24_bitmask.Sparse24BitMaskTensor.from_dense(dense).dict("a.weight")
    return {name.removeprefix("a."): tensor for name, tensor in made.items()}


if __name__ == "__main__":
    main()
