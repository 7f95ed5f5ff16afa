"""What share of the machine's multiply rate the products of a prompt reach, matrix by matrix.

    python -m benchmarks.prompt_products [--rows 1024] [--threads N] [--rounds 5]
        [--formats bfloat16_bfloat16,int8_int8:128,...] [--models qwen2.5-0.5b,llama-3.1-8b]
        [--sets avx2,avxvnni]

The matrices are those of one layer of Qwen2.5-0.5B and of Llama-3.1-8B. A rate is twice the
multiply-adds, divided by a thread's processor time: the median of the rounds. After it comes its
share of the rate that is probed first: of bfloat16 by AMX where the format's activations are
bfloat16 or bytes, else of float multiply-adds. (Bytes are multiplied twice as fast; their scales,
one for each 32 inputs of a row, are not.)

With --sets instruction sets are compared instead, in turns, and the share is of the first one's
rate. A checkout compiles the best two by itself; DOVETAIL_CPU_ISA names another.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch

from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.cpu.probe import Limits, probe
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.native import Packed

FORMATS = "bfloat16_bfloat16,int8_int8:128,int4_int8:64,int4_int8:32,int6_int8:16"
MODELS = {
    "qwen2.5-0.5b": {
        "qkv": (1152, 896),
        "o": (896, 896),
        "gate_up": (9728, 896),
        "down": (896, 4864),
    },
    "llama-3.1-8b": {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
    },
}
"""Outputs and inputs of each matrix of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One matrix in one format."""

    label: str
    format: str
    outputs: int
    inputs: int

    def packed(self, source: Library) -> Packed:
        """Return random weights."""
        name, _, group = self.format.partition(":")
        weight = make_weight(name, self.outputs, self.inputs, group=int(group or 0))
        return Packed(weight, is_gated="gate" in self.label, source=source)


def rates(
    product: Product, rows: int, rounds: int, threads: int, sources: list[Library]
) -> list[float]:
    """Return operations per second of a thread's processor time, times the threads, by source."""
    weights, x = [product.packed(source) for source in sources], torch.randn(rows, product.inputs)
    out = torch.empty(rows, weights[0].out_size)
    times_s: list[list[float]] = [[] for _ in weights]
    for number in range(rounds + 1):
        for packed, own_s in zip(weights, times_s, strict=True):
            start_s = time.process_time()
            packed.multiply_into(out, x)
            if number:  # the first is not measured
                own_s.append(time.process_time() - start_s)
    operations = 2 * rows * product.outputs * product.inputs * threads
    return [operations / statistics.median(own_s) for own_s in times_s]


def peak(limits: Limits, format: str) -> float:
    """Return the probed rate that a format's products are compared with."""
    if limits.tile_flops_per_s is None or format.partition(":")[0] in ("float32", "bfloat16"):
        return limits.flops_per_s
    return limits.tile_flops_per_s


def main() -> None:
    """Print the probed rates, then a line for each matrix and format."""
    native = needed_library()
    parser = argparse.ArgumentParser(
        description="shares of the multiply rate in a prompt's products"
    )
    parser.add_argument("--rows", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument("--threads", type=int, default=native.num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default=FORMATS, help="NAME or NAME:GROUP, between commas")
    parser.add_argument("--models", default=",".join(MODELS), help="names, between commas")
    parser.add_argument("--sets", default="", help="instruction sets, between commas")
    chosen = parser.parse_args()
    sources = [Library(native.path, isa) for isa in filter(None, chosen.sets.split(","))]
    for source in (native, *sources):
        source.set_threads(chosen.threads)
    limits = probe(native)
    tiles = (
        f", tiles {limits.tile_flops_per_s / 1e9:.0f} GFLOP/s" if limits.tile_flops_per_s else ""
    )
    print(
        f"{limits.isa}, {limits.threads} threads: fma {limits.flops_per_s / 1e9:.0f} GFLOP/s{tiles}"
    )
    for model in chosen.models.split(","):
        for label, (outputs, inputs) in MODELS[model].items():
            for format in chosen.formats.split(","):
                product = Product(label=label, format=format, outputs=outputs, inputs=inputs)
                found = rates(
                    product, chosen.rows, chosen.rounds, chosen.threads, sources or [native]
                )
                whole = found[0] if sources else peak(limits, format)
                columns = "".join(f"{x / 1e9:8.0f} GOP/s {x / whole:6.0%}" for x in found)
                print(f"{model:<14}{label:<9}{format:<20}{columns}", flush=True)


if __name__ == "__main__":
    main()
