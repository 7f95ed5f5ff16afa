"""Files that the tensorizer package has written are read bit for bit, checksums heeded."""

from __future__ import annotations

import gzip
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.load_formats.tensorizer import Tensorizer, TensorizerOptions

DATA = Path(__file__).resolve().parents[2] / "data" / "tensorizer"
NAMES = ("opaque.tensors", "plain.tensors")
WRITTEN: dict[str, torch.Tensor] = runpy.run_path(str(DATA / "write.py"))["tensors"]()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with the files, uncompressed."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_bytes(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    return folder


def read(folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    load_format = Tensorizer(TensorizerOptions(**options))
    return dict(load_format.tensors(Checkpoint(path=str(folder))))


@pytest.mark.parametrize("file", NAMES)
@pytest.mark.parametrize("verify", [False, True])
def test_every_tensor_as_it_was_written(data: Path, file: str, verify: bool) -> None:
    found = read(data, tensorizer_uri=file, verify_hash=verify)
    opaque = (torch.bfloat16, torch.float8_e4m3fn)
    assert set(found) == {
        name for name, t in WRITTEN.items() if "opaque" in file or t.dtype not in opaque
    }
    for name, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (WRITTEN[name].dtype, WRITTEN[name].shape)
        assert torch.equal(tensor.double(), WRITTEN[name].double())


def test_a_wrong_bit_is_found_where_it_is_asked_for(data: Path, tmp_path: Path) -> None:
    whole = (data / "opaque.tensors").read_bytes()
    at = whole.index(WRITTEN["a.weight"].numpy().tobytes())
    (tmp_path / "model.tensors").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert not torch.equal(read(tmp_path)["a.weight"], WRITTEN["a.weight"])
    with pytest.raises(ConfigError, match=r'"a\.weight" has another checksum'):
        read(tmp_path, verify_hash=True)


def test_a_file_elsewhere_is_not_read(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file name"):
        TensorizerOptions(tensorizer_uri="../model.tensors")
    with pytest.raises(ConfigError, match="is not a file name"):
        TensorizerOptions(tensorizer_uri="s3://models/model.tensors")
    shutil.copy(data / "plain.tensors", tmp_path / "one.tensors")
    shutil.copy(data / "plain.tensors", tmp_path / "two.tensors")
    with pytest.raises(ConfigError, match=r"also in one\.tensors"):
        read(tmp_path)


def test_encrypted_files_are_told(data: Path, tmp_path: Path) -> None:
    whole = bytearray((data / "opaque.tensors").read_bytes())
    whole[5] = 4
    whole[9] |= 1
    (tmp_path / "model.tensors").write_bytes(whole)
    with pytest.raises(ConfigError, match="encrypted"):
        read(tmp_path)
