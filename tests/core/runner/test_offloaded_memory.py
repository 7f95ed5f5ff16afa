"""Memory that is offloaded is released, and comes back as it was."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import psutil
import pytest
import torch

from dovetail.errors import RequestError
from dovetail.runner.load import host_copies, offloaded_memory
from dovetail.runner.load.offloaded_memory import OffloadedMemory, OffloadedPages, OffloadedStorages

MIB = 1 << 20
WAYS = [OffloadedPages, OffloadedStorages]


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def put(
    way: Callable[..., OffloadedMemory], tensors: list[torch.Tensor], *, keeps: bool
) -> OffloadedMemory:
    return way(offloaded_memory._storages(tensors), keeps=keeps)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_comes_back(
    way: Callable[..., OffloadedMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "PIECE_BYTES", 1 << 16)
    whole = torch.randn(300_000)
    view, small = whole[8:80_008].view(8, -1), torch.arange(10)
    with torch.inference_mode():
        made_there = torch.randn(5000)
    tensors = [whole, view, small, made_there]
    wanted = [tensor.clone() for tensor in tensors]
    for _ in range(2):
        offloaded = put(way, tensors, keeps=True)
        assert offloaded.num_bytes >= whole.nbytes - 2 * 4096
        offloaded.restore()
        assert all(torch.equal(a, b) for a, b in zip(tensors, wanted, strict=True))


def test_pages_go_back_to_the_system_and_keep_their_addresses() -> None:
    tensor = torch.ones(64 * MIB, dtype=torch.uint8)
    address, before = tensor.data_ptr(), resident_bytes()
    offloaded = put(OffloadedPages, [tensor], keeps=False)
    assert before - resident_bytes() > 60 * MIB
    assert tensor.data_ptr() == address
    assert not tensor[MIB : 2 * MIB].any()
    offloaded.restore()
    assert tensor.fill_(3)[-1] == 3


def test_what_cannot_be_kept_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object, content: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(offloaded_memory, "_write", fail)
    tensor = torch.randn(10_000)
    wanted = tensor.clone()
    with pytest.raises(RequestError, match="No space left") as caught:
        put(OffloadedPages, [tensor], keeps=True)
    assert tempfile.gettempdir() in caught.value.what
    assert torch.equal(tensor, wanted)


def test_a_device_without_room_is_asked_again() -> None:
    tensors = [torch.randn(1000), torch.randn(500)]
    wanted = [tensor.clone() for tensor in tensors]
    offloaded = put(OffloadedStorages, tensors, keeps=True)
    assert isinstance(offloaded, OffloadedStorages)
    missing = offloaded._missing
    storage, size = missing[0]
    missing[0] = (Full(), size)  # type: ignore[assignment]
    with pytest.raises(RequestError, match="no free memory") as caught:
        offloaded.restore()
    assert caught.value.status == 503
    assert torch.equal(tensors[0], wanted[0])
    missing[0] = (storage, size)
    offloaded.restore()
    assert torch.equal(tensors[1], wanted[1])


class Full:
    """A storage for which there is no memory."""

    def resize_(self, size: int) -> None:
        raise RuntimeError("out of memory")
