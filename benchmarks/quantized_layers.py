"""Layers of every quantization method: what they are kept as, in which memory, at which speed.

    python benchmarks/quantized_layers.py [--threads 1] [--only gguf aqlm ...]
        [--write docs/reference/quantized_layers.json]
    DOVETAIL_CPU_ISA=none TRITON_INTERPRET=1 python benchmarks/quantized_layers.py --interpreted
        [--write docs/reference/quantized_layers_gpu.json]

One layer of 4096 x 4096 is filled with random stored tensors, finished, and multiplied in turn with
the same layer in bfloat16: `memory` is what it keeps over what the checkpoint stores, `speed` the
bfloat16 layer's median time over its own, at 1 and at 16 rows. Logit errors are not taken here:
tests/plugins/quantization holds every method to its bound against the library that wrote the
checkpoint.

With `--only`, methods and types of that name are taken, and written in the place of their rows.

With `--interpreted`, layers of 1024 x 1024 are packed as for a GPU and multiplied by Triton's
interpreter: `memory` as above, `error` the largest distance of a product from the same rows times
the matrix that the layer looks up, in deviations of the products.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

SIZE = 4096
SMALL = 1024
"""The size of layers whose products are interpreted."""
ROWS = (1, 16)
GROUP = 128
ROUNDS = 25
STORED: dict[str, dict[str, dict[str, Any]]] = {
    "gptq": {"4 bits": {"bits": 4, "group_size": 128, "desc_act": False},
             "8 bits": {"bits": 8, "group_size": 128, "desc_act": False},
             "3 bits": {"bits": 3, "group_size": 128, "desc_act": False}},
    "gptq_marlin": {"4 bits": {"bits": 4, "group_size": 128, "desc_act": False}},
    "marlin": {"4 bits": {"bits": 4, "group_size": 128, "checkpoint_format": "marlin",
                          "is_marlin_format": True}},
    "gptq_marlin_24": {"4 bits": {"bits": 4, "group_size": 128,
                                  "checkpoint_format": "marlin_24"}},
    "awq": {"4 bits": {"bits": 4, "group_size": 128, "version": "gemm"}},
    "awq_marlin": {"4 bits": {"bits": 4, "group_size": 128, "version": "gemm"}},
    "auto-round": {"4 bits": {"bits": 4, "group_size": 128, "packing_format":
                              "auto_round:auto_gptq"}},
    "ipex": {"4 bits": {"bits": 4, "group_size": 128, "quant_method": "gptq"}},
    "compressed-tensors": {
        "W4A16": {"format": "pack-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group",
                                               "group_size": 128, "symmetric": True}}}},
        "W8A8 int8": {"format": "int-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token",
                                  "dynamic": True, "symmetric": True}}}},
        "W8A8 fp8": {"format": "float-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token",
                                  "dynamic": True, "symmetric": True}}}},
        "NVFP4": {"format": "nvfp4-pack-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy":
                "tensor_group", "group_size": 16, "symmetric": True}}}},
    },
    "fp8": {"per tensor": {"activation_scheme": "dynamic"},
            "128 x 128": {"activation_scheme": "dynamic", "weight_block_size": [128, 128]}},
    "fbgemm_fp8": {"per output": {}},
    "modelopt": {"FP8": {"quant_algo": "FP8"}, "NVFP4": {"quant_algo": "NVFP4"}},
    "mxfp4": {"4 bits": {}},
    "deepspeedfp": {"8 bits": {"bits": 8, "group_size": 512},
                    "6 bits": {"bits": 6, "group_size": 512}},
    "hqq": {"4 bits": {"quant_config": {"weight_quant_params":
                                        {"nbits": 4, "group_size": 64, "axis": 1}}}},
    "aqlm": {"2 bits": {"in_group_size": 8, "out_group_size": 1, "num_codebooks": 1,
                        "nbits_per_codebook": 16}},
    "qqq": {"4 bits": {"wbits": 4, "group_size": 128}},
    "torchao": {"int8": {"quant_type": {"default": {"_type": "Int8WeightOnlyConfig",
                                                    "_data": {}}}}},
    "bitsandbytes": {"nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
                     "int8": {"load_in_8bit": True}},
    "tpu_int8": {"8 bits": {}},
    "neuron_quant": {"8 bits": {"quant_dtype": "s8"}},
}  # fmt: skip
"""Method -> what is shown -> the checkpoint's quantization_config without its method."""
GGUF = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
        "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
        "TQ1_0", "TQ2_0", "MXFP4", "NVFP4")  # fmt: skip
LAYER = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts.up_proj"
ONLY_EXPERTS = ("mxfp4", "experts_int8")
"""Methods that leave all other layers alone."""
LOADING = (
    "none",
    "int8",
    "int4",
    "int4-plain",
    "fp8",
    "bitsandbytes",
    "experts_int8",
    "deepspeedfp",
)


def spec_of(method: str, size: int = SIZE) -> Any:
    """Return the layer."""
    from dovetail.interfaces.quantization import LinearSpec

    return LinearSpec(
        name=EXPERTS if method in ONLY_EXPERTS else LAYER,
        in_size=size,
        out_sizes=(size,),
        dtype="float32",
        device="cpu",
        weight_dtype="bfloat16",
    )


def linear_of(method: str, config: dict[str, Any] | None, size: int = SIZE) -> Any:
    """Return the linear method for the layer, of a checkpoint's config or while loading."""
    import msgspec

    from dovetail import registry
    from dovetail_testing.contract import model_spec

    spec = msgspec.structs.replace(model_spec(), hidden_size=SIZE)
    plugin: Any = registry.load("quantization", method)
    if config is not None:
        stored = {"quant_method": plugin.stored_as[0], **config}
        made = {**spec.hf_config, "quantization_config": stored}
        spec = msgspec.structs.replace(spec, hf_config=made)
    reasons = plugin.why_not(spec)
    assert not reasons, (method, reasons)
    return plugin(plugin.Options(), spec).linear(spec_of(method, size))


def filled(linear: Any, method: str, size: int = SIZE) -> tuple[Any, int]:
    """Return a finished layer and the bytes of what a checkpoint stores of it."""
    from torch import nn

    layer = nn.Module()
    linear.create(layer, spec_of(method, size))
    stored_bytes = 0
    for name, parameter in layer.named_parameters():
        parameter.data.copy_(random_tensor(name, parameter.data, size))
        stored_bytes += parameter.data.nbytes
    linear.finish(layer)
    return layer, stored_bytes


def random_tensor(name: str, like: Any, size: int) -> Any:
    """Return a tensor that a checkpoint could hold. Shapes: as `like`"""
    import torch

    random = torch.Generator().manual_seed(0)
    if name.endswith("g_idx"):
        return torch.arange(like.numel()).div(GROUP, rounding_mode="floor").view_as(like)
    if like.is_floating_point():
        values = torch.rand(like.shape, generator=random) * 0.02 + 0.001
        is_scale = "scale" in name or like.numel() < size * size
        signs = torch.randint(0, 2, like.shape, generator=random) * 2 - 1
        return (values if is_scale else values * signs).to(like.dtype)
    if "scale" in name:  # exponents of two
        return torch.randint(115, 125, like.shape, generator=random).to(like.dtype)
    facts = torch.iinfo(like.dtype)
    values = torch.randint(facts.min, facts.max, like.shape, generator=random)
    # Bytes that are halves of a float16 stay below one.
    return (values & 0x3B if name in GGUF else values).to(like.dtype)


def measured(method: str, shown: str, config: dict[str, Any] | None) -> dict[str, Any]:
    """Return the row of a method, or why there is none."""
    row: dict[str, Any] = {"method": method, "stored": shown}
    linear = linear_of(method, config)
    plain = linear_of("none", None)
    layer, stored_bytes = filled(linear, method)
    plain_layer, _ = filled(plain, "none")
    kept = [*layer.parameters(), *layer.buffers()]
    row["kept"], row["rounds"] = kept_as(linear), is_rounded(linear)
    row["memory"] = round(sum(tensor.nbytes for tensor in kept) / stored_bytes, 3)
    row["experts"] = can_hold_experts(linear)
    row["looks_up"] = bool(linear.looks_up)
    for rows in ROWS:
        row[f"speed_{rows}"] = speed(linear, layer, plain, plain_layer, rows)
    return row


def interpreted(method: str, shown: str, config: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a GPU keeps of a layer, and how far the interpreted product is off."""
    import torch

    linear = linear_of(method, config, SMALL)
    layer, stored_bytes = filled(linear, method, SMALL)
    kept = [*layer.parameters(), *layer.buffers()]
    x = torch.randn(3, SMALL, generator=torch.Generator().manual_seed(1))
    wanted = x @ linear.rows(layer, torch.arange(SMALL)).float().T
    error = (linear.apply(layer, x, None) - wanted).abs().max() / wanted.std()
    return {
        "method": method,
        "stored": shown,
        "kept": kept_as(linear),
        "memory": round(sum(tensor.nbytes for tensor in kept) / stored_bytes, 3),
        "error": float(f"{error:.1e}"),
    }


def kept_as(linear: Any) -> str:
    """Return the kernel's format, or torch's product."""
    matrix = vars(linear).get("_matrix")
    packed = None if matrix is None else matrix.packed
    return "torch" if packed is None else str(packed.format)


def is_rounded(linear: Any) -> bool:
    """Return whether activations become bfloat16 before a product with another format."""
    matrix = vars(linear).get("_matrix")
    return matrix is not None and bool(matrix.packed.rounds_activations)


def can_hold_experts(linear: Any) -> bool:
    """Return whether the method makes matrices of experts, one after the other."""
    from dovetail.interfaces.quantization import LinearMethod

    return type(linear).matrix is not LinearMethod.matrix


def speed(linear: Any, layer: Any, plain: Any, plain_layer: Any, rows: int) -> float:
    """Return the plain layer's median time over this one's, in turns."""
    import torch

    x = torch.randn(rows, SIZE)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS):
        for taken, one, module in zip(times, (linear, plain), (layer, plain_layer), strict=True):
            start = time.perf_counter()
            one.apply(module, x, None)
            if number > 4:
                taken.append(time.perf_counter() - start)
    return round(statistics.median(times[1]) / statistics.median(times[0]), 2)


def replaced(file: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a file's rows with these in the places of theirs, new ones at the end."""
    new = {(row["method"], row["stored"]): row for row in rows}
    old = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return [new.pop((row["method"], row["stored"]), row) for row in old] + [*new.values()]


def main() -> int:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--interpreted", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    from dovetail_plugins.bench.machine import machine_facts

    take = interpreted if asked.interpreted else measured
    stored = STORED | {"gguf": {name: {"types": {LAYER: name}} for name in GGUF}}
    wanted = [(method, *case) for method, cases in stored.items() for case in cases.items()]
    wanted += [(method, "while loading", None) for method in LOADING]
    rows = []
    for method, shown, config in wanted:
        if not asked.only or {method, shown} & set(asked.only):
            rows.append(take(method, shown, config))
            print(json.dumps(rows[-1]), flush=True)
    if asked.write is not None:
        facts = {} if asked.interpreted else {"threads": asked.threads, "machine": machine_facts()}
        rows = replaced(asked.write, rows) if asked.only else rows
        text = json.dumps({**facts, "rows": rows}, indent=1)
        asked.write.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
