"""Weight files as others write them, whole and damaged, for the clauses of load formats.

The writers are the libraries that define the formats: safetensors and torch.save. Needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from dovetail.interfaces.load_format import Checkpoint, LoadFormat

Tensors = Mapping[str, torch.Tensor]


def sample_tensors() -> dict[str, torch.Tensor]:
    """Return tensors of several dtypes and shapes, none alike."""
    random = torch.Generator().manual_seed(0)
    return {
        "model.embed.weight": torch.randn(7, 5, generator=random),
        "model.layers.0.norm.weight": torch.randn(5, generator=random).to(torch.bfloat16),
        "model.layers.0.proj.weight": torch.randn(5, 3, generator=random).to(torch.float16),
        "model.layers.0.codes": torch.arange(12, dtype=torch.int32).reshape(2, 2, 3),
        "model.scale": torch.tensor(0.5),
        "lm_head.weight": torch.randn(7, 5, generator=random),
    }


def write_safetensors(folder: Path, tensors: Tensors) -> None:
    """Write one model.safetensors."""
    from safetensors.torch import save_file

    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def write_sharded_safetensors(folder: Path, tensors: Tensors) -> None:
    """Write two shards and their index."""
    from safetensors.torch import save_file

    index: dict[str, str] = {}
    for number, part in enumerate(_halves(tensors), start=1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file(part, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def write_bin(folder: Path, tensors: Tensors) -> None:
    """Write one pytorch_model.bin."""
    torch.save(dict(tensors), folder / "pytorch_model.bin")


def write_sharded_bin(folder: Path, tensors: Tensors) -> None:
    """Write two .bin shards and their index."""
    index: dict[str, str] = {}
    for number, part in enumerate(_halves(tensors), start=1):
        name = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save(part, folder / name)
        index |= dict.fromkeys(part, name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))


WRITERS: dict[str, Callable[[Path, Tensors], None]] = {
    "safetensors": write_safetensors,
    "sharded_safetensors": write_sharded_safetensors,
    "bin": write_bin,
    "sharded_bin": write_sharded_bin,
}


def readable_folders(plugin: type[LoadFormat], root: Path, tensors: Tensors) -> dict[str, Path]:
    """Return a folder for each layout that the format says it reads, its own among them."""
    folders = {}
    for name, write in WRITERS.items():
        folder = root / name
        folder.mkdir()
        write(folder, tensors)
        if not plugin.why_not(Checkpoint(path=str(folder))):
            folders[name] = folder
    own = root / "own"
    own.mkdir()
    try:
        plugin.write_sample(str(own), tensors)
    except NotImplementedError:
        return folders
    return folders | {"own": own}


def weight_file(folder: Path) -> Path:
    """Return the largest file of a checkpoint."""
    return max(folder.iterdir(), key=lambda file: file.stat().st_size)


def code_running_pickle(trace: Path) -> bytes:
    """Return a pickle (protocol 0) whose loading would create the file `trace`."""
    return f"cos\nsystem\n(S'touch {trace}'\ntR.".encode()


def _halves(tensors: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    items = list(tensors.items())
    middle = len(items) // 2
    return dict(items[:middle]), dict(items[middle:])
