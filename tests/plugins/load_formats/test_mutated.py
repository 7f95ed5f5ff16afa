"""200 damaged files per format: each is told by a ConfigError or read within its own bounds.

Bytes are flipped, cut, added and overwritten with huge counts, anywhere in the file; headers in
JSON are changed by meaning too. No file outside the folder is opened, nothing hangs or takes
memory that the file does not have.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint
from dovetail_testing.checkpoints import sample_tensors
from support.samples import sample_of

NUM_MUTANTS = sample_of(200, 80)
LIMIT_S = 5.0
"""Of one mutant. All 200 take a second or two."""
DATA = Path(__file__).resolve().parents[2] / "data" / "tensorizer"
HUGE = (2**63 - 1, 2**64 - 1, 2**40, 2**32, 2**31, 0)
PACKAGES = {
    "runai_streamer": "runai_model_streamer",
    "runai_streamer_sharded": "runai_model_streamer",
    "fastsafetensors": "fastsafetensors",
}


class Opened:
    """The files that Python opens while `is_watching`. An audit hook cannot be taken away."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.is_watching = False
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.is_watching and event == "open" and isinstance(args[0], str | bytes | Path):
            self.paths.add(str(args[0]))


OPENED = Opened()


def write_safetensors(folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_file(sample_tensors(), path, metadata={"format": "pt"})
    return path


def write_rank(folder: Path) -> Path:
    path = folder / "model-rank-0-part-0.safetensors"
    save_file(sample_tensors(), path, metadata={"ranks": "1"})
    return path


def write_consolidated(folder: Path) -> Path:
    names = ("tok_embeddings.weight", "layers.0.attention.wq.weight", "norm.weight")
    path = folder / "consolidated.safetensors"
    save_file({name: torch.randn(8, 4) for name in names}, path)
    (folder / "params.json").write_text('{"n_heads": 2, "n_kv_heads": 1}')
    return path


def write_tensorizer(folder: Path) -> Path:
    path = folder / "model.tensors"
    path.write_bytes(gzip.decompress((DATA / "opaque.tensors.gz").read_bytes()))
    return path


def write_pt(folder: Path) -> Path:
    path = folder / "pytorch_model.bin"
    torch.save(sample_tensors(), path)
    return path


def write_old_pt(folder: Path) -> Path:
    path = folder / "pytorch_model.bin"
    torch.save(sample_tensors(), path, _use_new_zipfile_serialization=False)
    return path


def write_cache(folder: Path) -> Path:
    """Return the manifest of a cache; the source file stays whole, so the cache counts as fresh."""
    write_pt(folder)
    read("npcache", folder)
    return folder / "np" / "manifest.json"


def write_cached_tensor(folder: Path) -> Path:
    return write_cache(folder).with_name("00000.npy")


CASES: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any]]] = {
    "safetensors-lazy": ("safetensors", write_safetensors, {}),
    "safetensors-eager": ("safetensors", write_safetensors, {"reading": "eager"}),
    "auto": ("auto", write_safetensors, {}),
    "hf": ("hf", write_safetensors, {}),
    "hf-pt": ("hf", write_pt, {}),
    "mistral": ("mistral", write_consolidated, {}),
    "sharded_state": ("sharded_state", write_rank, {}),
    "tensorizer": ("tensorizer", write_tensorizer, {}),
    "tensorizer-verified": ("tensorizer", write_tensorizer, {"verify_hash": True}),
    "pt": ("pt", write_pt, {}),
    "pt-old": ("pt", write_old_pt, {}),
    "npcache-manifest": ("npcache", write_cache, {}),
    "npcache-tensor": ("npcache", write_cached_tensor, {}),
    "runai_streamer": ("runai_streamer", write_safetensors, {}),
    "runai_streamer_sharded": ("runai_streamer_sharded", write_rank, {}),
    "fastsafetensors": ("fastsafetensors", write_safetensors, {}),
}


def read(name: str, folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    plugin: Any = registry.load("load_format", name)
    checkpoint = Checkpoint(path=str(folder), rank=RankSpec(), num_workers=1)
    return dict(plugin(plugin.Options(**options)).tensors(checkpoint))


def mutants(whole: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield damaged copies: half of them hurt the first bytes, where counts and offsets stand."""
    changes = [flip, cut, grow, overwrite, swap]
    is_json = whole[8:9] == b"{"
    for number in range(NUM_MUTANTS):
        if is_json and number % 4 == 0:
            yield reworded(whole, chance)
            continue
        span = len(whole) if number % 2 else min(len(whole), 400)
        yield chance.choice(changes)(whole, chance, span)


def flip(whole: bytes, chance: random.Random, span: int) -> bytes:
    changed = bytearray(whole)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(span)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(whole: bytes, chance: random.Random, span: int) -> bytes:
    at = chance.randrange(span)
    return whole[:at] if chance.random() < 0.5 else whole[:at] + whole[at + chance.randint(1, 64) :]


def grow(whole: bytes, chance: random.Random, span: int) -> bytes:
    at = chance.choice((chance.randrange(span), len(whole)))
    return whole[:at] + chance.randbytes(chance.randint(1, 64)) + whole[at:]


def overwrite(whole: bytes, chance: random.Random, span: int) -> bytes:
    at = chance.randrange(span)
    width = chance.choice((2, 4, 8))
    value = chance.choice(HUGE) % (1 << (8 * width))
    return whole[:at] + value.to_bytes(width, "little") + whole[at + width :]


def swap(whole: bytes, chance: random.Random, span: int) -> bytes:
    """Return the file with one stretch in the place of another: entries twice, offsets crossed."""
    a, b = chance.randrange(span), chance.randrange(span)
    length = chance.randint(1, 48)
    return whole[:a] + whole[b : b + length] + whole[a + length :]


def reworded(whole: bytes, chance: random.Random) -> bytes:
    """Return the file with one entry of its JSON header changed in meaning."""
    length = int.from_bytes(whole[:8], "little")
    entries = json.loads(whole[8 : 8 + length])
    name = chance.choice([key for key in entries if key != "__metadata__"])
    begin, end = entries[name]["data_offsets"]
    wrong: dict[str, Any] = chance.choice(
        (
            {"dtype": chance.choice(("F64", "BF16", "F99", "", 7, None))},
            {"shape": chance.choice(([2**62, 2**62], [-1], [1.5], "x", None, [[]], [True]))},
            {"data_offsets": chance.choice(([0, 2**63], [end, begin], [begin], [-8, 8], None))},
            {"data_offsets": [0, end - begin]},
            {"shape": [0], "data_offsets": [begin, begin]},
        )
    )
    changed = entries | {name: entries[name] | wrong}
    text = json.dumps(chance.choice((changed, changed | {"../x": entries[name]}))).encode()
    return len(text).to_bytes(8, "little") + text + whole[8 + length :]


@pytest.mark.parametrize("case", CASES)
def test_damage_is_told_or_read_within_bounds(case: str, tmp_path: Path) -> None:
    name, write, options = CASES[case]
    if find_spec(PACKAGES.get(name, "torch")) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    folder = tmp_path / "model"
    folder.mkdir()
    path = write(folder)
    whole = path.read_bytes()
    wanted = read(name, folder, **options)
    chance = random.Random(case)
    num_told = 0
    for number, mutant in enumerate(mutants(whole, chance)):
        path.write_bytes(mutant)
        start_s = time.monotonic()
        OPENED.paths.clear()
        OPENED.is_watching = True
        try:
            found = read(name, folder, **options)
            assert sum(t.nbytes for t in found.values()) <= sum(
                file.stat().st_size for file in folder.rglob("*") if file.is_file()
            )
            if "verified" in case:
                same = all(bytes_of(found[n]) == bytes_of(wanted[n]) for n in found)
                assert same, f"mutant {number} went unnoticed"  # an index may say fewer
        except ConfigError as error:
            num_told += 1
            assert str(folder) in str(error), error
        finally:
            OPENED.is_watching = False
        assert time.monotonic() - start_s < LIMIT_S, f"mutant {number} took long"
        outside = [p for p in OPENED.paths if not p.startswith(str(folder)) and is_data(p)]
        assert outside == [], f"mutant {number}"
    assert num_told > NUM_MUTANTS // 8, "too few mutants hurt: the test has no teeth"


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def is_data(path: str) -> bool:
    """Return whether a file is no part of the installation."""
    return not path.endswith((".py", ".pyc", ".so", ".pth")) and not path.startswith(
        (sys.prefix, sys.base_prefix, "/proc", "/dev", "/sys")
    )
