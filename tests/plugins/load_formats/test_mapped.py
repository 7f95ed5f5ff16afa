"""What a mapped file's tensors have read leaves the process's memory with the last of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dovetail_plugins.load_formats._mapped import MappedFile

SIZE = 4 << 20


def resident_bytes(path: Path) -> int:
    """Return the bytes of a mapped file that are in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    return sum(
        1024 * int(next(line for line in lines if line.startswith("Rss:")).split()[1])
        for line in lines
        if line.endswith(str(path))
    )


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted by Linux")
def test_pages_go_with_the_last_tensor_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    mapped = MappedFile(path)
    tensor = mapped.read(0, SIZE)
    view = tensor.view(-1, 256)[1:]
    assert resident_bytes(path) == 0
    assert int(tensor.sum()) == SIZE // 256 * sum(range(256))
    assert resident_bytes(path) == SIZE
    del tensor
    assert resident_bytes(path) == SIZE
    del view
    assert resident_bytes(path) == 0
    assert mapped.read(255, 257).tolist() == [255, 0]
