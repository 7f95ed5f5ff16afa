"""Checkpoints in NumPy's .npz archives: one member a tensor, as MLX and many scripts write them.

A load format from outside: it says whether a folder is of its kind, yields the tensors one by one,
and writes them. Members must be stored, not compressed, so that no header can ask for more memory
than the file is long. bfloat16, which NumPy lacks, is two plain bytes a value ("V2"), as the
package ml_dtypes writes it. Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces import Info
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat

if TYPE_CHECKING:
    import numpy as np
    import torch

FILE = "weights.npz"
SUFFIX = ".npy"
KINDS = "biuf"
"""NumPy's letters for booleans, integers and floats."""
BFLOAT16 = "V2"


class Npz(LoadFormat):
    """All members of the folder's .npz files."""

    interface_version = 1
    info = Info(summary="NumPy .npz archives (an example)", requires=("numpy",))
    capabilities = frozenset({"lazy", "writes"})

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        if query is None or archives(query):
            return []
        return ["the folder holds no *.npz file"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, archive by archive. Raises: ConfigError naming the file."""
        found = archives(checkpoint)
        if not found:
            raise ConfigError(
                "the folder holds no *.npz file to read.",
                where=checkpoint.path,
                fix="check the model's path, or choose another --load-format.",
            )
        all_bytes, done_bytes = sum(path.stat().st_size for path in found), 0
        for path in found:
            yield from read_archive(path)
            done_bytes += path.stat().st_size
            if checkpoint.progress is not None:
                checkpoint.progress(done_bytes, all_bytes)

    @classmethod
    def write(
        cls, folder: str, tensors: Iterable[tuple[str, torch.Tensor]], *, rank: RankSpec
    ) -> int:
        """Write one archive; return its bytes. Raises: ConfigError."""
        path = Path(folder, FILE)
        try:
            with zipfile.ZipFile(path, "w") as archive:
                for name, tensor in tensors:
                    with archive.open(name + SUFFIX, "w", force_zip64=True) as member:
                        write_member(member, tensor)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error}", where=str(path)) from error
        return path.stat().st_size


def archives(checkpoint: Checkpoint) -> list[Path]:
    """Return the folder's archives in order of name, without those to leave out."""
    found = sorted(Path(checkpoint.path).glob("*.npz"))
    return [p for p in found if not any(fnmatch(p.name, x) for x in checkpoint.ignore_patterns)]


def read_archive(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of one archive. Raises: ConfigError naming the file and the member."""
    member = ""
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                member = info.filename
                yield member.removesuffix(SUFFIX), read_member(archive, info)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
        what = f'"{member}" cannot be read: {error}' if member else f"is not an archive: {error}"
        raise ConfigError(what, where=str(path), fix="download or write it again.") from error


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> torch.Tensor:
    """Return one tensor. Raises: ValueError for a member that is not what it says."""
    import numpy as np
    import torch

    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed; write it with numpy.savez")
    if info.flag_bits & 1:
        raise ValueError("it is encrypted")
    with archive.open(info) as file:
        shape, is_turned, dtype = read_header(file)
        num_bytes = info.file_size - file.tell()
        if math.prod(shape) * dtype.itemsize != num_bytes:
            raise ValueError(f"{dtype} {list(shape)} does not fit its {num_bytes} bytes")
        data = bytearray(file.read())
    is_bfloat16 = dtype.str[1:] == BFLOAT16
    array = np.frombuffer(data, np.int16 if is_bfloat16 else dtype)
    array = array.reshape(shape, order="F" if is_turned else "C")
    tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(shape))
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether the first index runs fastest, and dtype. Raises: ValueError"""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format is not read")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_turned, dtype = read(file)
    if dtype.kind not in KINDS and dtype.str[1:] != BFLOAT16:
        raise ValueError(f"it holds {dtype}, not numbers")
    if not dtype.isnative:
        raise ValueError(f"{dtype} is of another byte order")
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {list(shape)}")
    return shape, is_turned, dtype


def write_member(file: IO[bytes], tensor: torch.Tensor) -> None:
    """Write a header and the numbers. Mutates: file. Raises: ConfigError"""
    import torch
    from numpy.lib import format as npy

    if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1:
        raise ConfigError(f"{FILE} cannot hold {tensor.dtype}", fix="choose another load format.")
    is_bfloat16 = tensor.dtype == torch.bfloat16
    array = (tensor.view(torch.int16) if is_bfloat16 else tensor).contiguous().numpy()
    descr = f"|{BFLOAT16}" if is_bfloat16 else npy.dtype_to_descr(array.dtype)
    npy.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": tuple(tensor.shape)}
    )
    file.write(memoryview(array).cast("B") if array.size else b"")
