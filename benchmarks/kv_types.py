"""Decode attention over KV caches of each type, native kernel: time, and bytes, beside bfloat16.

    python -m benchmarks.kv_types [--context N] [--rounds N] [--layers N]
        [--types "bfloat16 int8 k8v4 int4"]

One row decodes over a long context, one thread, through several layers, so that keys come from
memory. The types take turns within each round; figures are
medians of each round's ratio to bfloat16, so that other work on the machine touches all alike. Keys
are normal numbers around a part that all share, as trained models have.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from dovetail_kernels.cpu.library import needed_library
from dovetail_kernels.integer_caches import BITS, stored_size
from dovetail_kernels.paged_attention.layout import cache_shape
from dovetail_kernels.paged_attention.native import Step

SHAPES = {"Qwen2.5 0.5B": (14, 2, 64), "Llama 3.1 8B": (32, 8, 128)}
"""Heads, kv heads and head size of a layer."""
BLOCK = 64
WARM = 2


class Layers:
    """Layers' filled caches of one type, and one row's decode step over them."""

    def __init__(self, name: str, shape: tuple[int, int, int], context: int, layers: int) -> None:
        heads, kv_heads, size = shape
        dtype = torch.int8 if name in BITS else getattr(torch, name)
        blocks = -(-context // BLOCK)
        self.cache = torch.zeros(
            cache_shape(blocks + 1, BLOCK, kv_heads, stored_size(name, size)), dtype=dtype
        )
        self.bytes = self.cache.nbytes * context // ((blocks + 1) * BLOCK) / context
        draw = torch.Generator().manual_seed(1)
        rules = {
            "num_heads": heads, "num_kv_heads": kv_heads, "head_size": size,
            "scale": size**-0.5, "rotates": name in BITS, "may_round": True,
        }  # fmt: skip
        table = (torch.randperm(blocks, generator=draw) + 1).int().view(1, -1)
        shared = 10 * torch.randn(1, kv_heads, size, generator=draw)
        for start in range(0, context, BLOCK):
            k, v = torch.randn(2, BLOCK, kv_heads, size, generator=draw)
            slots = int(table[0, start // BLOCK]) * BLOCK + torch.arange(BLOCK)
            self._step(table, min(context, start + BLOCK), slots, rules)(
                torch.zeros(1, heads, size), k + shared, v, self.cache
            )
        self.caches = [self.cache, *(self.cache.clone() for _ in range(layers - 1))]
        self.step = self._step(table, context, None, rules)
        self.q = torch.randn(1, heads, size, generator=draw) / 8

    def _step(
        self, table: torch.Tensor, length: int, slots: torch.Tensor | None, rules: dict[str, object]
    ) -> Step:
        step = Step(
            block_table=table, query_start=torch.tensor([0, 1]).int(),
            seq_lens=torch.tensor([length]).int(), slots=slots, block_tokens=BLOCK,
        )  # fmt: skip
        step.set_rules(**rules)  # type: ignore[arg-type]
        return step

    def seconds(self) -> float:
        """Return the time of a call per layer."""
        start = time.perf_counter()
        for cache in self.caches:
            self.step(self.q, None, None, cache)
        return time.perf_counter() - start


def main() -> None:
    """Print a table per shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--types", default="bfloat16 int8 k8v4 int4")
    asked = parser.parse_args()
    needed_library().set_threads(1)
    names = asked.types.split()
    print(f"| layer of {asked.context} tokens | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for title, shape in SHAPES.items():
        layers = {name: Layers(name, shape, asked.context, asked.layers) for name in names}
        rounds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(WARM + asked.rounds):
            taken = {name: layers[name].seconds() for name in names}
            for name in names if turn >= WARM else ():
                rounds[name].append(taken[name] / taken[names[0]])
        size = {name: layers[name].bytes for name in names}
        cells = [f"{statistics.median(rounds[name]):.2f}" for name in names]
        print(f"| {title}, time | " + " | ".join(cells) + " |")
        print(f"| {title}, bytes a token | " + " | ".join(f"{size[n]:.0f}" for n in names) + " |")


if __name__ == "__main__":
    main()
