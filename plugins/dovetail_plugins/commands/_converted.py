"""Convert: rewrites a checkpoint in another load format.

Formats that store the parameters of each rank get a loaded but unpacked model per rank; all others
get the checkpoint's tensors one by one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import torch
from torch import nn

from dovetail import registry
from dovetail.config.checkpoint.dtypes import stored_dtype
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec, RunSpec
from dovetail.interfaces.load_format import LoadFormat
from dovetail.layers.attention.kv_scales import stored_tensors
from dovetail.layers.dtypes import dtype_of
from dovetail.runner.load.loader import load_unpacked, reading

SETTINGS = ("*.json", "*.jinja", "*.model", "*.model.v*", "*.txt", "*.tiktoken")
"""Files that are copied unchanged, except weight indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The result of a conversion."""

    num_bytes: int
    num_settings: int


def convert(run: RunSpec, target: type[LoadFormat], out: Path, *, num_ranks: int = 1) -> Converted:
    """Write the checkpoint of `run` to the empty folder `out` in the format `target`.

    Raises: ConfigError if the folder is in use, or the format does not support this conversion
    """
    _check(run, target, out, num_ranks)
    out.mkdir(parents=True, exist_ok=True)
    num_bytes = 0
    if "divided" in target.capabilities:
        for rank in range(num_ranks):
            num_bytes += _write_rank(run, target, out, rank, num_ranks)
    else:
        source = cast(LoadFormat, registry.make(run.load_format))
        with reading(run, torch.device("cpu"), None) as checkpoint:
            num_bytes = target.write(str(out), source.tensors(checkpoint), rank=RankSpec())
    return Converted(num_bytes=num_bytes, num_settings=_copy_settings(Path(run.model.path), out))


def _check(run: RunSpec, target: type[LoadFormat], out: Path, num_ranks: int) -> None:
    source, folder = run.load_format, Path(run.model.path)
    if "writes" not in target.capabilities:
        raise ConfigError(
            "this format can only be read, not written.",
            where="--to",
            fix="`dovetail plugins list load_format` shows what formats can do.",
        )
    if num_ranks > 1 and "divided" not in target.capabilities:
        raise ConfigError(
            "this format does not depend on the number of ranks.",
            where="--ranks",
            fix="leave it out.",
        )
    if not folder.is_dir():
        raise ConfigError(
            "only folders are converted, not single files.", where=str(folder), fix="name a folder."
        )
    if "divided" in _capabilities(source.target):
        raise ConfigError(
            "the checkpoint holds the parameters of each rank.",
            where="--load-format",
            fix="convert the checkpoint that they were made from.",
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            "already exists and is not an empty folder.", where=str(out), fix="name a new folder."
        )


def _capabilities(target: str) -> frozenset[str]:
    from pkgutil import resolve_name

    return cast("type[LoadFormat]", resolve_name(target)).capabilities


def _write_rank(
    run: RunSpec, target: type[LoadFormat], out: Path, rank: int, num_ranks: int
) -> int:
    """Write one rank's parameters; return their size in bytes."""
    own = RankSpec(rank=rank, world_size=num_ranks, tensor_rank=rank, tensor_size=num_ranks)
    model = load_unpacked(msgspec.structs.replace(run, rank=own))
    stored = stored_dtype(run.model.hf_config)
    return target.write(str(out), _parameters(model, stored), rank=own)


def _parameters(model: nn.Module, stored: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter, in the checkpoint's type if that is lossless, and the checkpoint's
    KV-cache tensors."""
    narrow = None if stored is None else dtype_of(stored)
    for name, parameter in model.named_parameters():
        data = parameter.detach()
        if narrow is not None and data.dtype == torch.float32 != narrow:
            short = data.to(narrow)
            data = short if torch.equal(short.to(torch.float32), data) else data
        yield name, data
    yield from stored_tensors(model)


def _copy_settings(source: Path, out: Path) -> int:
    """Copy settings and tokenizer files; return their number."""
    found = {file for pattern in SETTINGS for file in source.glob(pattern) if file.is_file()}
    wanted = [file for file in found if not file.name.endswith(".index.json")]
    for file in wanted:
        shutil.copyfile(file, out / file.name)
    return len(wanted)
