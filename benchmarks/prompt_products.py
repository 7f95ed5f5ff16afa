"""What share of the machine's multiply rate the products of a prompt reach, matrix by matrix.

    python -m benchmarks.prompt_products [--rows 1024] [--threads N] [--rounds 5]
        [--formats bfloat16_bfloat16,int8_int8:128,...] [--models qwen2.5-0.5b,llama-3.1-8b]
        [--sets avx2,avxvnni] [--contexts 1024,16384]

The matrices are those of one layer of Qwen2.5-0.5B and of Llama-3.1-8B. A rate is twice the
multiply-adds, divided by a thread's processor time: the median of the rounds. After it comes its
share of the rate that is probed first: of bfloat16 by AMX where the format's activations are
bfloat16 or bytes, else of float multiply-adds. (Bytes are multiplied twice as fast; their scales,
one for each 32 inputs of a row, are not.)

With --sets instruction sets are compared instead, in turns, and the share is of the first one's
rate. A checkout compiles the best two by itself; DOVETAIL_CPU_ISA names another.

--contexts measures attention instead: of the last rows of prompts of these lengths, over a cache in
bfloat16, by heads and head size. Only keys that a row sees count. Shares are of bfloat16 by AMX,
probed in the same turns and by processor time as well; with --sets avx512bf16,amx the last column
is how many times as fast tiles are as pairs.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.cpu.probe import TASKS_PER_THREAD, Limits, ProbeArgs, probe
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.paged_attention.layout import cache_shape
from dovetail_kernels.paged_attention.native import Step

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
HEADS = ((14, 2, 64), (8, 2, 64), (14, 2, 128), (8, 2, 128))
"""Query heads, kv heads and numbers of a head."""
BLOCK = 16
"""Tokens of a block of the cache."""
PROBE_ROUNDS = 2000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The last `rows` tokens of a prompt of `context`, attended."""

    heads: tuple[int, int, int]
    context: int
    rows: int

    @property
    def operations(self) -> int:
        """Multiply-adds count twice: a key's score, and its value."""
        num_heads, _, size = self.heads
        keys = self.rows * (2 * self.context - self.rows + 1) // 2
        return 4 * keys * num_heads * size

    def calls(self, sources: list[Library]) -> list[Callable[[], object]]:
        """Return a call for each library, over the same scattered blocks."""
        num_heads, num_kv_heads, size = self.heads
        blocks = -(-self.context // BLOCK)
        shape = cache_shape(blocks, BLOCK, num_kv_heads, size)
        cache, q = torch.randn(shape).bfloat16(), torch.randn(self.rows, num_heads, size)
        table = torch.randperm(blocks).int().unsqueeze(0)
        steps = []
        for source in sources:
            step = Step(
                block_table=table,
                query_start=torch.tensor([0, self.rows], dtype=torch.int32),
                seq_lens=torch.tensor([self.context], dtype=torch.int32),
                slots=None,
                block_tokens=BLOCK,
                source=source,
            )
            step.set_rules(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_size=size,
                scale=size**-0.5,
                may_round=True,
            )
            steps.append(step)
        return [partial(step, q, None, None, cache) for step in steps]


def rates(
    product: Product, rows: int, rounds: int, threads: int, sources: list[Library]
) -> list[float]:
    """Return operations per second of a thread's processor time, times the threads, by source."""
    weights, x = [product.packed(source) for source in sources], torch.randn(rows, product.inputs)
    out = torch.empty(rows, weights[0].out_size)
    times_s = median_times_s([partial(packed.multiply_into, out, x) for packed in weights], rounds)
    return [2 * rows * product.outputs * product.inputs * threads / own_s for own_s in times_s]


def median_times_s(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median processor time of each of some calls that are made in turns."""
    times_s: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for call, own_s in zip(calls, times_s, strict=True):
            start_s = time.process_time()
            call()
            if number:  # the first is not measured
                own_s.append(time.process_time() - start_s)
    return [statistics.median(own_s) for own_s in times_s]


def print_attention(
    attention: Attention, rounds: int, threads: int, sources: list[Library]
) -> None:
    """Print rates of attention, their shares of what tiles do, and the last over the first."""
    tiles, memory = sources[-1].kernel("probe_tiles", ProbeArgs), torch.zeros(16 * 256)
    args = ProbeArgs(rounds=PROBE_ROUNDS, out=memory.data_ptr())
    probed = threads * TASKS_PER_THREAD * PROBE_ROUNDS * tiles(ctypes.byref(args))
    *times_s, probe_s = median_times_s(
        [*attention.calls(sources), partial(tiles, ctypes.byref(args))], rounds
    )
    found = [attention.operations * threads / own_s for own_s in times_s]
    whole = probed * threads / probe_s
    columns = "".join(
        f"{x / 1e9:8.0f} GOP/s" + (f" {x / whole:6.1%}" if whole else "") for x in found
    )
    num_heads, num_kv_heads, size = attention.heads
    label = f"{attention.context} tokens, {num_heads} heads of {size} over {num_kv_heads}"
    print(f"{label:<36}{columns}{found[-1] / found[0]:7.2f}", flush=True)


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
    parser.add_argument("--contexts", default="", help="tokens of attention's prompts")
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
    compared = sources or [native]
    for tokens in map(int, filter(None, chosen.contexts.split(","))):
        for heads in HEADS:
            attention = Attention(heads=heads, context=tokens, rows=min(chosen.rows, tokens))
            print_attention(attention, chosen.rounds, chosen.threads, compared)
    for model in () if chosen.contexts else chosen.models.split(","):
        for label, (outputs, inputs) in MODELS[model].items():
            for format in chosen.formats.split(","):
                product = Product(label=label, format=format, outputs=outputs, inputs=inputs)
                found = rates(product, chosen.rows, chosen.rounds, chosen.threads, compared)
                whole = found[0] if sources else peak(limits, format)
                columns = "".join(f"{x / 1e9:8.0f} GOP/s {x / whole:6.0%}" for x in found)
                print(f"{model:<14}{label:<9}{format:<20}{columns}", flush=True)


if __name__ == "__main__":
    main()
