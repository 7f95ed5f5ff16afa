"""The page of quantization methods: what each layer is kept as, its memory and its speed.

The figures come from quantized_layers.json, which benchmarks/quantized_layers.py writes; the names
and summaries from the registry. Knows no method.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "reference" / "quantized_layers.json"
MEANT = {
    "bfloat16_bfloat16": "bfloat16, activations rounded to it",
    "float16": "float16",
    "int8": "int8, activations int8 per token",
    "int8_float32": "int8 in groups",
    "int8_int8": "int8 in groups, activations int8 per token",
    "int4": "4 bits in groups",
    "int4_int8": "4 bits in groups, activations int8 per token",
    "float8": "e4m3 in groups",
    "table4": "4-bit codes of a table",
}
"""A kernel's format in words."""
FALLBACK = ("bfloat16_bfloat16", "float16", "float32")
HEAD = """\
# Quantization

{note}

How a layer of each method is kept and multiplied on a CPU. *Kept as* is the format of the native
kernel; a method whose values no kernel reads is turned into plain numbers while it loads, which is
said. Off the CPU, and where no compiler is found, the same matrix is dequantized and multiplied by
torch; no method has a Triton kernel yet.

`memory` is what a layer keeps over what the checkpoint stores of it; `speed` the median time of the
same layer in bfloat16 over its own, at 1 and at 16 rows, on {threads} of {machine}
([quantized_layers.py](../../benchmarks/quantized_layers.py)). Experts, fused layers, embeddings and
heads go through the same matrix: *experts* and *looks up* say whether the method holds experts and
whether tables and heads may be stored in it. Logits are compared in `tests/plugins/quantization`
and `tests/plugins/gguf` with the library that wrote the checkpoint, or with transformers given the
matrices that the format's words mean: within 0.001 of the range of the logits with float
activations, 0.02 with activations rounded to 8 bits.
"""


def quantization_page(note: str) -> str:
    """Return the page. `note` says how it was made."""
    from dovetail import registry

    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    threads = "one thread" if found["threads"] == 1 else f"{found['threads']} threads"
    parts = [HEAD.format(note=note, threads=threads, machine=found["machine"]["cpu"])]
    parts.append(
        "| method | stored | kept as | memory | experts | looks up | speed, 1 row | 16 rows |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    parts += [_row(row) for row in found["rows"]]
    shown = {row["method"] for row in found["rows"]}
    (kind,) = (kind for kind in registry.describe() if kind["kind"] == "quantization")
    built_in = (e["name"] for e in kind["entries"] if e["distribution"] == "dovetail-llm")
    rest = sorted(name for name in built_in if name not in shown)
    if rest:
        parts.append(f"\nWithout figures: {', '.join(f'`{name}`' for name in rest)}.")
    return "\n".join(parts) + "\n"


def _row(row: dict[str, Any]) -> str:
    kept = MEANT.get(row["kept"], row["kept"])
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
    )
    return f"| {' | '.join(cells)} |"
