"""The page of quantization methods: what each layer is kept as, its memory and its speed.

The figures come from quantized_layers.json and quantized_layers_gpu.json, which
benchmarks/quantized_layers.py writes; the names and summaries come from the registry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "reference" / "quantized_layers.json"
GPU_FIGURES = Path(__file__).parent / "reference" / "quantized_layers_gpu.json"
MEANT = {
    "bfloat16_bfloat16": "bfloat16, activations rounded to it",
    "float16": "float16",
    "int8": "int8, activations int8",
    "int8_float32": "int8 in groups",
    "int8_int8": "int8 in groups, activations int8",
    **{f"int{n}": f"{n} bits in groups" for n in (2, 3, 4, 5, 6)},
    **{f"int{n}_int8": f"{n} bits in groups, activations int8" for n in (2, 3, 4, 5, 6)},
    "float8": "e4m3 in groups",
    "table4": "4-bit codes of a table",
    "vectors": "codes of vectors",
    "vectors_int8": "codes of vectors, activations int8",
    "trits": "five trits in a byte",
    "trits_int8": "five trits in a byte, activations int8",
}
"""A kernel's format in words."""
FALLBACK = ("bfloat16_bfloat16", "float16", "float32")
HEAD = """\
# Quantization

{note}

How the layers of each method are kept in memory and multiplied. *Kept as* is the format of the
native CPU kernel; if no kernel reads a method's values, they are dequantized while loading, and the
table says so. Without a compiler and without Triton, the same matrix is dequantized and multiplied
by torch.

`memory` is the size of a layer in memory divided by its size in the checkpoint. `speed` is the
median time of the same layer in bfloat16 divided by the time of this layer, at 1 and at 16 rows, on
{threads} of {machine} ([quantized_layers.py](../../benchmarks/quantized_layers.py)). Experts, fused
layers, embeddings and heads use the same matrix: *experts* and *looks up* say whether the method
supports experts, and whether embeddings and heads can be stored in it. `tests/plugins/quantization`
and `tests/plugins/gguf` compare the logits with the library that wrote the checkpoint, or with
transformers and the matrices that the format defines: they agree within 0.001 of the range of the
logits with float activations, and within 0.02 with activations rounded to 8 bits. If a CPU
multiplies pairs of bfloat16 (AVX512-BF16), activations of models in bfloat16 that are not rounded
to 8 bits are rounded to bfloat16. Integers and e4m3 are exact in bfloat16; the values of tables are
rounded, which changes those of nf4 and fp4, but not those of e2m1 and IQ4. Scales are not rounded.

Every method has the option `--plugin-options.quantization.activations`, which sets how products
round their activations. `float` never rounds them. By default a CPU rounds the activations of
integer weights to int8 in groups of 32 inputs (or to 16-bit integers, where AVX2 multiplies 8-bit
weights by them at the same speed), or with one scale per token if the checkpoint says so:
`compressed-tensors` with int8 `input_activations` (not in groups), `torchao`'s
Int8DynamicActivationInt8Weight, `qqq`. A GPU rounds only the latter, with one scale per token, and
leaves all others in 16 bits; `int8` rounds them all in this way. `dovetail inspect` shows what a
layer uses.

*On a GPU* is what Triton's kernels keep and read: the same format unless the table names another
one ("torch": there is no kernel, and torch multiplies dequantized numbers). `memory` is as above.
`error` is the largest error of a product, computed by Triton's interpreter, relative to the exact
matrix, in standard deviations of the products, with float32 activations: what remains is the
rounding of activations to 8 bits, if there is any. With 16-bit activations a device multiplies
16-bit weights: integers of 8 bits and fewer, e4m3 and e2m1 are exact in them; weights with an
offset, other tables, and scales of groups under 32 are rounded once.
"""


RANKS = """
## Over ranks

Every method of the table can divide its layers over ranks, with the same answers as one rank:
`tests/plugins/quantization/test_two_ranks.py` compares each method layer by layer, including fused
layers and experts, and also whole models in two processes. With `--enable-expert-parallel` a rank
holds whole experts: then their scales are those of one rank, and what is said below of divided
layers is not about them.

- Stored layers with float activations: equal up to the order of float32 sums.
- Activations rounded to 8 bits: a rank rounds the inputs it has, so equal within that rounding.
- `int4-plain`, `deepspeedfp`, and nf4 and fp4 made while loading: equal if their groups divide the
  inputs of a rank. So is `int4` if the 256 inputs that share a step do, and otherwise within the
  rounding of scales.
- `int8`, `experts_int8`, `fp8`, `tpu_int8`, `neuron_quant`, and `bitsandbytes` of kind int8, while
  loading: layers whose outputs are divided are equal. Where inputs are divided (`o_proj`,
  `down_proj`) each rank has its own scales, which are never larger than those of one rank: equal
  within the rounding of weights.

A rank holds whole groups of inputs, at least one, or one scale for all inputs. Refused: groups,
blocks or tiles that would be divided between ranks (GPTQ, AWQ, auto-round, Marlin, qqq, hqq with
axis 1, torchao, MXFP4, NVFP4, float8 blocks, bitsandbytes' blocks of 64, GGUF's blocks), GPTQ's
inputs ordered by activation, and parts that end inside a packed word (3 bits, 16 outputs a head).
"""


def quantization_page(note: str) -> str:
    """Return the page. `note` says how it was made."""
    from dovetail import registry

    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    threads = "one thread" if found["threads"] == 1 else f"{found['threads']} threads"
    parts = [HEAD.format(note=note, threads=threads, machine=found["machine"]["cpu"])]
    parts.append(
        "| method | stored | kept as | memory | experts | looks up | speed, 1 row | 16 rows "
        "| on a GPU | memory | error |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )
    told = json.loads(GPU_FIGURES.read_text(encoding="utf-8"))
    on_gpu = {(row["method"], row["stored"]): row for row in told["rows"]}
    parts += [_row(row, on_gpu.get((row["method"], row["stored"]))) for row in found["rows"]]
    shown = {row["method"] for row in found["rows"]}
    (kind,) = (kind for kind in registry.admin.describe() if kind["kind"] == "quantization")
    built_in = [e for e in kind["entries"] if e["distribution"] == "dovetail-llm"]
    targets = {e["target"] for e in built_in if e["name"] in shown}
    rest = sorted(e["name"] for e in built_in if e["target"] not in targets)
    if rest:
        parts.append(f"\nWithout figures: {', '.join(f'`{name}`' for name in rest)}.")
    parts.append(RANKS.rstrip())
    return "\n".join(parts) + "\n"


def _row(row: dict[str, Any], on_gpu: dict[str, Any] | None) -> str:
    kept = MEANT.get(row["kept"], row["kept"])
    if row.get("rounds"):
        kept += ", activations rounded to bfloat16"
    if row["kept"] in FALLBACK and row["method"] != "none":
        kept += " (no kernel reads it packed)"
    cells = (
        f"`{row['method']}`",
        row["stored"],
        kept,
        f"{row['memory']:.2f}",
        "yes" if row["experts"] else "no",
        "yes" if row["looks_up"] else "no",
        f"{row['speed_1']:.2f}",
        f"{row['speed_16']:.2f}",
        *_gpu_cells(row, on_gpu),
    )
    return f"| {' | '.join(cells)} |"


def _gpu_cells(row: dict[str, Any], on_gpu: dict[str, Any] | None) -> tuple[str, str, str]:
    """Return what a GPU keeps, its memory, and the error of its product."""
    if on_gpu is None:
        return "", "", ""
    kept = on_gpu["kept"]
    meant = "torch" if kept == "torch" else MEANT.get(kept, kept)
    same = "the same" if kept == row["kept"] else meant
    return same, f"{on_gpu['memory']:.2f}", f"{on_gpu['error']:.0e}"
