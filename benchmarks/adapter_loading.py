"""What it costs to load an adapter, beside reading its file.

Loading is from the call until a request may ask for the adapter. Reading is safetensors' own, and
keeps what was read, as what is loaded is kept. Both are measured in turns, for
several sorts of adapters (which modules, of which rank) and several layouts of each: the first
adapter of a layout, one like it, and the file of both.

Both get new memory from the kernel: what malloc keeps of memory that was freed is given back before
(glibc). A virtual machine may have none there, and a page that its host has to find takes ten times
as long: so memory is filled and freed before, on the core that asks for it then if there is only
one.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dovetail.engine.client.offline.sync_engine import SyncEngine
from dovetail.engine.messages import LoadAdapter
from dovetail.interfaces.data.adapter_spec import AdapterSource

Clock = Callable[[], float]
HIDDEN, INNER, LAYERS, KV_SIZE = 896, 4864, 24, 128
SIZES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, KV_SIZE),
    "self_attn.v_proj": (HIDDEN, KV_SIZE),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (HIDDEN, INNER),
    "mlp.up_proj": (HIDDEN, INNER),
    "mlp.down_proj": (INNER, HIDDEN),
}
SORTS = {
    "all": tuple(SIZES),
    "attention": tuple(SIZES)[:4],
    "q, v": ("self_attn.q_proj", "self_attn.v_proj"),
}
FILE = "adapter_model.safetensors"
OFTEN_S, RARELY_S = 0.0002, 0.005
"""Between two looks at whether an adapter is there; looking takes processor time."""
FILLED_BYTES = 1 << 26
"""More than any file has, and than malloc takes from memory that it keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Seconds of one sort of adapters, layout by layout."""

    name: str
    file_bytes: int
    firsts: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)


def write_adapter(
    folder: Path, rank: int, seed: int, modules: Sequence[str] = tuple(SIZES), alpha: int = 16
) -> Path:
    """Write a random adapter of linear layers, as PEFT saves it; return its folder."""
    folder.mkdir()
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        for module in modules:
            inputs, outputs = SIZES[module]
            name = f"base_model.model.model.layers.{layer}.{module}"
            down = torch.randn(rank, inputs, generator=chance) / inputs**0.5
            up = torch.randn(outputs, rank, generator=chance) * 0.01
            tensors[f"{name}.lora_A.weight"] = down.bfloat16()
            tensors[f"{name}.lora_B.weight"] = up.bfloat16()
    save_file(tensors, folder / FILE)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def load(engine: SyncEngine, name: str, folder: Path, clock: Clock) -> float:
    """Return how long an adapter takes until a request may ask for it."""
    start_s = clock()
    done = engine.core.perform(LoadAdapter(source=AdapterSource(name=name, path=str(folder))))
    while not done.done():
        time.sleep(RARELY_S if clock is time.process_time else OFTEN_S)
        engine.core.poll()
    done.result()
    return clock() - start_s


def measured(
    engine: SyncEngine, scratch: Path, rank: int, num_layouts: int, clock: Clock
) -> list[Loading]:
    """Return what loading takes, of adapters of this rank and of a quarter of it."""
    return [
        _of_sort(engine, scratch, one, sort, num_layouts, clock)
        for one in (rank, max(rank // 4, 1))
        for sort in SORTS
    ]


def _of_sort(
    engine: SyncEngine, scratch: Path, rank: int, sort: str, num_layouts: int, clock: Clock
) -> Loading:
    """Return what loading takes, of adapters that differ in the scale that their config tells: so
    each has a layout of its own, and a file like the others'."""
    name = f"{sort} of rank {rank}"
    alphas = range(1, num_layouts + 1)
    folders = [
        write_adapter(scratch / f"{name}, alpha {alpha}", rank, alpha, SORTS[sort], alpha)
        for alpha in alphas
    ]
    found = Loading(name=name, file_bytes=(folders[0] / FILE).stat().st_size)
    kept: list[torch.Tensor] = []
    for folder in folders:
        load_file(folder / FILE)
        for times, call in (
            (found.firsts, partial(load, engine, f"{folder.name}, first", folder, clock)),
            (found.others, partial(load, engine, f"{folder.name}, again", folder, clock)),
            (found.reads, partial(_read, folder, kept, clock)),
        ):
            torch.empty(FILLED_BYTES, dtype=torch.uint8).fill_(1)
            ctypes.CDLL(None).malloc_trim(0)
            times.append(call())
    return found


def _read(folder: Path, kept: list[torch.Tensor], clock: Clock) -> float:
    """Return how long it takes to read a file and keep its numbers. Mutates: kept"""
    start_s = clock()
    kept += [one.clone() for one in load_file(folder / FILE).values()]
    return clock() - start_s


def report(found: Sequence[Loading]) -> None:
    """Print what loading takes, beside reading."""
    first_s, read_s = found[0].firsts[0], statistics.median(found[0].reads)
    print(f"loading the first of all: {first_s * 1e3:.1f} ms, {first_s / read_s:.2f} of reading")
    print(f"{'adapters, median of':<22}{'file':>9}{'read':>9}   first of a layout    others")
    for one in found:
        read_s = statistics.median(one.reads)
        print(
            f"{one.name:<22}{one.file_bytes / 2**20:5.1f} MiB{read_s * 1e3:6.2f} ms"
            f"{_beside(one.firsts, read_s)}{_beside(one.others, read_s)}"
        )


def _beside(times: Sequence[float], read_s: float) -> str:
    ratios = sorted(one / read_s for one in times)
    median = statistics.median(times)
    return f"{median * 1e3:7.2f} ms {median / read_s:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
