"""How long each load format takes for a random model, and how much memory, against plain reading.

Every format gets the same tensors (safetensors in shards, the others as they are written) and a
process of its own, which copies each tensor into one stretch of memory as loading does. "read" is
the same files read once into one buffer. Peak is resident memory above what the process had
before; the bound is the model plus the largest file.

    python benchmarks/loading.py [--mib 1024] [--shards 4] [--times 3] [--cold]
        [--only NAME ...] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORMATS = (
    *("safetensors", "safetensors:eager", "auto", "pt", "npcache", "mistral", "sharded_state"),
    *("gguf", "tensorizer", "fastsafetensors", "runai_streamer", "runai_streamer_sharded"),
)
"""A format, with a reading behind a colon."""
READ_BYTES = 8 * 2**20
HIDDEN = 2048


def main() -> None:
    """Write the model, load it in every format, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="drop the files from the cache first")
    parser.add_argument("--only", nargs="+", default=FORMATS)
    parser.add_argument("--folder", help="where the files go; kept if given")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_load(json.loads(args.child))))
        return
    root = Path(args.folder or tempfile.mkdtemp(prefix="loading-"))
    try:
        _print_table(root, args)
    finally:
        if not args.folder:
            shutil.rmtree(root)


def _print_table(root: Path, args: argparse.Namespace) -> None:
    print(
        f"{args.mib} MiB of bfloat16 in {args.shards} shards, {'cold' if args.cold else 'cached'}"
    )
    print(f"{'format':<24}{'read s':>8}{'load s':>8}{'ratio':>7}{'peak MiB':>10}{'of bound':>10}")
    for name in args.only:
        plain, _, reading = name.partition(":")
        folder = _written(root, plain, args)
        if folder is None:
            print(f"{name:<24}not run: its package is not installed")
            continue
        job = {"format": plain, "folder": str(folder), "reading": reading}
        job |= {"cold": args.cold, "mib": args.mib}
        files = _weights(folder)
        told = [_child(job) for _ in range(args.times)]
        best = min(told, key=lambda t: t["load_s"])
        read_s = min(t["read_s"] for t in told)
        bound = args.mib + max(f.stat().st_size for f in files) / 2**20
        peak = max(t["peak_mib"] for t in told)
        print(
            f"{name:<24}{read_s:>8.2f}{best['load_s']:>8.2f}{best['load_s'] / read_s:>7.2f}"
            f"{peak:>10.0f}{peak / bound:>10.2f}",
            flush=True,
        )


def _child(job: Mapping[str, Any]) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    answer: dict[str, float] = json.loads(done.stdout.decode().splitlines()[-1])
    return answer


def _load(job: Mapping[str, Any]) -> dict[str, float]:
    """Load once in this process; return seconds and peak."""
    from dovetail import registry
    from dovetail.interfaces.load_format import Checkpoint

    folder = Path(job["folder"])
    files = _weights(folder)
    plugin: Any = registry.load("load_format", job["format"])
    options = plugin.Options(**({"reading": job["reading"]} if job["reading"] else {}))
    checkpoint = Checkpoint(path=str(folder))
    tiny = Checkpoint(path=str(_tiny(folder, job["format"])))
    _copy_all(plugin(options).tensors(tiny), 2**20)
    _drop(files, is_wanted=job["cold"])
    read_s = _read_once(files)
    _drop(files, is_wanted=job["cold"])
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    start_s = time.perf_counter()
    _copy_all(plugin(options).tensors(checkpoint), job["mib"] * 2**20)
    load_s = time.perf_counter() - start_s
    return {
        "read_s": read_s,
        "load_s": load_s,
        "peak_mib": (_status("VmHWM") - before) / 2**10,
    }


def _copy_all(tensors: Iterator[tuple[str, Any]], model_bytes: int) -> None:
    """Copy every tensor into memory that stands for the model's own."""
    import torch

    model = torch.empty(model_bytes, dtype=torch.uint8)
    place = 0
    for _, tensor in tensors:
        own = model[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        own.copy_(tensor)
        place += tensor.nbytes


def _tiny(folder: Path, name: str) -> Path:
    """Return a checkpoint of one small tensor, so that imports are not measured."""
    import torch

    tiny = folder.parent / f"{folder.name}-tiny-{name}"
    if not tiny.is_dir():
        tiny.mkdir()
        _write(tiny, name, {"norm.weight": torch.ones(8)}, 1)
    return tiny


def _read_once(files: list[Path]) -> float:
    buffer = bytearray(READ_BYTES)
    start_s = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start_s


def _drop(files: list[Path], *, is_wanted: bool) -> None:
    """Ask the system to forget the files' pages."""
    for path in files if is_wanted else ():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _status(name: str) -> int:
    """Return a line of the process's status in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def _weights(folder: Path) -> list[Path]:
    if (folder / "np" / "manifest.json").is_file():
        return sorted((folder / "np").glob("*.npy"))
    found = [file for file in folder.iterdir() if file.is_file() and file.suffix != ".json"]
    return sorted(found)


def _written(root: Path, name: str, args: argparse.Namespace) -> Path | None:
    """Return the folder of a format, written if it is not there; None where it cannot be."""
    from dovetail import registry
    from dovetail.errors import UnavailablePlugin

    try:
        registry.load("load_format", name)
    except UnavailablePlugin:
        return None
    shared = {"auto", "fastsafetensors", "runai_streamer"}
    sharded = {"runai_streamer_sharded"}
    layout = "safetensors" if name in shared else "sharded_state" if name in sharded else name
    folder = root / f"{layout}-{args.mib}-{args.shards}"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        try:
            _write(folder, layout, _tensors(args.mib), args.shards)
        except ModuleNotFoundError:
            shutil.rmtree(folder)
            return None
    return folder


def _tensors(mib: int) -> dict[str, Any]:
    """Return matrices of 8 MiB with names as Mistral has them."""
    import torch

    random = torch.Generator().manual_seed(0)
    return {
        f"layers.{i}.attention.w{'qkvo'[i % 4]}.weight": torch.empty(
            HIDDEN, HIDDEN, dtype=torch.bfloat16
        ).random_(generator=random)
        for i in range(mib * 2**20 // (2 * HIDDEN * HIDDEN))
    }


def _write(folder: Path, name: str, tensors: dict[str, Any], shards: int) -> None:
    """Write the tensors in the layout that a format reads. Raises: ModuleNotFoundError"""
    import torch
    from safetensors.torch import save_file

    if name == "gguf":
        from dovetail import registry

        plugin: Any = registry.load("load_format", name)
        plugin.write_sample(str(folder), tensors)
        return
    if name == "tensorizer":
        from tensorizer import TensorSerializer

        writer = TensorSerializer(str(folder / "model.tensors"))
        writer.write_state_dict(tensors)
        writer.close()
        return
    names = list(tensors)
    size = -(-len(names) // shards)
    for number in range(min(shards, len(names))):
        part = {n: tensors[n] for n in names[number * size : (number + 1) * size]}
        if name in ("pt", "npcache"):
            torch.save(part, folder / f"pytorch_model-{number}.bin")
        elif name in ("sharded_state", "runai_streamer_sharded"):
            save_file(part, folder / f"model-rank-0-part-{number}.safetensors", {"ranks": "1"})
        elif name == "mistral":
            save_file(part, folder / f"consolidated-{number}.safetensors")
            (folder / "params.json").write_text('{"n_heads": 16}')
        else:
            save_file(part, folder / f"model-{number}.safetensors")


if __name__ == "__main__":
    main()
