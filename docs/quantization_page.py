"""The page of quantization methods: what each layer is kept as, its memory and its speed.

The figures come from quantized_layers.json and quantized_layers_gpu.json, which
benchmarks/quantized_layers.py writes; the names
and summaries from the registry. Knows no method.
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

How a layer of each method is kept and multiplied. *Kept as* is the format of the CPU's native
kernel; a method whose values no kernel reads is turned into plain numbers while it loads, which is
said. Where there is neither a compiler nor Triton, the same matrix is dequantized and multiplied by
torch.

`memory` is what a layer keeps over what the checkpoint stores of it; `speed` the median time of the
same layer in bfloat16 over its own, at 1 and at 16 rows, on {threads} of {machine}
([quantized_layers.py](../../benchmarks/quantized_layers.py)). Experts, fused layers, embeddings and
heads go through the same matrix: *experts* and *looks up* say whether the method holds experts and
whether tables and heads may be stored in it. Logits are compared in `tests/plugins/quantization`
and `tests/plugins/gguf` with the library that wrote the checkpoint, or with transformers given the
matrices that the format's words mean: within 0.001 of the range of the logits with float
activations, 0.02 with activations rounded to 8 bits. Activations of models in bfloat16 are rounded
to it where a CPU multiplies pairs of it (AVX512-BF16) and they are not 8-bit. Integers and e4m3 are
exact in it; a table's values are rounded as well, which changes those of nf4 and fp4 and not those
of e2m1 and IQ4. Scales are not rounded.

What products make of their activations is one option of every method,
`--plugin-options.quantization.activations`. `float` rounds none, on any device. By default a CPU
makes those that meet integers int8 in groups of 32 inputs (or 16-bit integers, where AVX2
multiplies 8-bit weights by them as fast), or with a scale a token where the checkpoint says so:
`compressed-tensors` with int8 `input_activations` (not in groups), `torchao`'s
Int8DynamicActivationInt8Weight, `qqq`; a GPU does the latter and leaves all others in 16 bits
unless `int8` is asked for, which has a scale a token there. `dovetail inspect` says what a layer
gets.

*On a GPU* is what Triton's kernels keep and read: the same format unless another is named ("torch":
no kernel, torch multiplies plain numbers). `memory` is as before; `error` the largest distance of a
product by Triton's interpreter from the matrix that is meant, in deviations of the products, taken
with float32 activations: what remains is the activations' rounding to 8 bits, where there is any.
With 16-bit activations a device multiplies 16-bit weights: integers of 8 bits and fewer, e4m3 and
e2m1 are exact in them, weights that take an offset, other tables and scales of groups under 32 are
rounded once.
"""


RANKS = """
## Over ranks

Every method of the table divides its layers over ranks, and two of them together answer what one
does: `tests/plugins/quantization/test_two_ranks.py` compares each method layer by layer, fused ones
and experts among them, and whole models in two processes are compared beside it. The flag that
would ask for it, `--tensor-parallel-size`, is refused until workers of several ranks are built;
until then this is what a plugin or a script that builds the model itself can rely on.

- Stored layers with float activations: equal but for the order of float32 sums.
- Activations that become 8-bit: a rank rounds the inputs it has, so within that rounding.
- `int4`, `deepspeedfp`, and nf4 and fp4 made while loading: equal where their groups divide the
  inputs of a rank.
- `int8`, `experts_int8`, `fp8`, `tpu_int8`, `neuron_quant`, and `bitsandbytes` of kind int8, while
  loading: layers whose outputs are divided are equal. Where inputs are (`o_proj`, `down_proj`) a
  rank has scales of its own, never larger than those of one rank: within the weights' rounding.

A rank holds whole groups of inputs, one at least, or one scale that is for all inputs. Refused:
groups, blocks or tiles that would lie across ranks (GPTQ, AWQ, auto-round, Marlin, qqq, hqq with
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
    (kind,) = (kind for kind in registry.describe() if kind["kind"] == "quantization")
    built_in = (e["name"] for e in kind["entries"] if e["distribution"] == "dovetail-llm")
    rest = sorted(name for name in built_in if name not in shown)
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
