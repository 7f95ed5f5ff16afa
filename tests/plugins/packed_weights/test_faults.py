"""Damage of the weight cache: an entry is read whole or not at all, and a start goes on."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail_kernels.cpu.library import library
from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.weight import Weight
from dovetail_plugins.commands.cache_ls import CacheLsCommand
from dovetail_plugins.commands.cache_verify import CacheVerifyCommand
from dovetail_plugins.packed_weights import entry_file, folder, loading
from dovetail_plugins.packed_weights.folder import SUFFIX, UNFINISHED, entries, make_room
from support.samples import sample_of

pytestmark = pytest.mark.skipif(library() is None, reason="nothing is packed without the library")
KEY = "k" * 40
NUM_FAULTS = int(os.environ.get("NUM_FAULTS", "1000"))


def layers(seed: int = 0) -> dict[str, list[Matrix]]:
    """Return packed weights of three layers, one of them in two matrices."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(outputs: int) -> Matrix:
        values = torch.randint(0, 16, (outputs, 64), generator=generator).to(torch.uint8)
        scales = torch.rand(outputs, 2, generator=generator)
        weight = Weight(format="int4", values=values, scales=scales, group=32)
        return Matrix(weight, device="cpu", dtype=torch.float32)

    return {"a#0": [matrix(96)], "b#0": [matrix(33), matrix(70)], "b#1": [matrix(33), matrix(5)]}


def products(found: dict[str, list[Matrix]]) -> torch.Tensor:
    x = torch.linspace(-1, 1, 64).view(1, 64)
    parts = [one.multiply(x) for name in sorted(found) for one in found[name]]
    return torch.cat(parts, dim=1)


def written(path: Path) -> bytes:
    entry_file.write(path, KEY, "a model", layers())
    return path.read_bytes()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    written(path)
    assert torch.equal(products(entry_file.read(path, KEY)), products(layers()))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_random_faults_never_change_a_product(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    whole = written(path)
    expected = products(layers())
    choice, num_refused = random.Random(7), 0
    for _ in range(NUM_FAULTS):
        path.write_bytes(_fault(whole, choice))
        try:
            found = entry_file.read(path, KEY)
        except entry_file.Damaged:
            num_refused += 1
            with pytest.raises(entry_file.Damaged):
                entry_file.check(path, KEY)
        else:  # gaps between tensors hold nothing
            assert torch.equal(products(found), expected)
            entry_file.check(path, KEY)
    assert num_refused > NUM_FAULTS // 2


def _fault(whole: bytes, choice: random.Random) -> bytes:
    """Return a file that is cut, torn, longer, or has wrong bits, pages or another order."""
    content = bytearray(whole)
    place = choice.randrange(len(content))
    match choice.randrange(6):
        case 0:
            del content[place:]
        case 1:
            content[place] ^= 1 << choice.randrange(8)
        case 2:
            content[place // 4096 * 4096 :][:4096] = b""
        case 3:
            page = slice(place // 4096 * 4096, place // 4096 * 4096 + 4096)
            content[page] = bytes(len(content[page]))
        case 4:
            content += content[:place]
        case _:
            other, size = choice.randrange(len(content)), choice.choice((1, 4, 64, 4096))
            one, two = content[place : place + size], content[other : other + size]
            if len(one) == len(two):
                content[place : place + size], content[other : other + size] = two, one
    return bytes(content)


def test_who_writes_an_entry_checks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SETTLED_S", -1.0)
    path = tmp_path / f"{KEY}{SUFFIX}"
    loading._write(path, "a model", layers(), 1 << 30)
    assert folder.is_checked(path)


def test_who_writes_a_damaged_entry_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, write = tmp_path / f"{KEY}{SUFFIX}", entry_file.write

    def torn(*args: Any) -> None:
        write(*args)
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(entry_file, "write", torn)
    loading._write(path, "a model", layers(), 1 << 30)
    assert not path.exists()
    assert "is damaged" in caplog.text


def test_an_entry_is_checked_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    written(path)
    assert loading._read(path)
    assert not folder.is_checked(path), "a change just now may have the same time"
    monkeypatch.setattr(folder, "SETTLED_S", -1.0)
    assert folder.is_checked(path)
    with monkeypatch.context() as patch:
        patch.setattr(entry_file, "_digest", _unexpected)
        assert loading._read(path)
    time.sleep(0.02)  # the file system's clock goes on
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert not folder.is_checked(path)
    assert loading._read(path) is None
    assert not path.exists()
    folder.remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []


def _unexpected(*_: Any) -> None:
    raise AssertionError("it was compared again")


def test_another_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    written(path)
    with pytest.raises(entry_file.Damaged, match="another key"):
        entry_file.read(path, "x" * 40)


def test_a_damaged_entry_is_removed_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    path.write_bytes(written(path)[:-100])
    with caplog.at_level(logging.WARNING):
        assert loading._read(path) is None
    assert str(path) in caplog.text and "its end" in caplog.text
    assert not path.exists()


WRITER = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from plugins.packed_weights.test_faults import KEY, layers
from dovetail_plugins.packed_weights import entry_file
many = {f"{name}{i}": one for i in range(300) for name, one in layers().items()}
print("ready", flush=True)
while True:
    entry_file.write(Path(sys.argv[1]), KEY, "a model", many)
"""


def test_a_killed_writer_leaves_no_half_entry(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    tests = Path(__file__).resolve().parents[2]
    choice = random.Random(3)
    for _ in range(sample_of(5, 2)):
        command = [sys.executable, "-c", WRITER, str(path), str(tests), *sys.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            time.sleep(choice.random() * 0.3)
            writer.send_signal(signal.SIGKILL)
        if path.exists():
            entry_file.read(path, KEY)
        folder.remove_unfinished(tmp_path)
        assert {file.name for file in tmp_path.iterdir()} <= {path.name}


def test_two_writers_of_one_entry(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    written(path)
    mapped = entry_file.read(path, KEY)
    entry_file.write(path, KEY, "a model", layers(seed=1))
    assert torch.equal(products(mapped), products(layers()))
    assert torch.equal(products(entry_file.read(path, KEY)), products(layers(seed=1)))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_no_entry(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", refuse)
    with caplog.at_level(logging.WARNING):
        loading._write(tmp_path / f"{KEY}{SUFFIX}", "a model", layers(), 1 << 30)
    assert os.strerror(number) in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        loading._write(tmp_path / "file" / f"{KEY}{SUFFIX}", "a model", layers(), 1 << 30)
    assert "not stored" in caplog.text


def test_the_longest_unused_entries_go_first(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / f"{number}{SUFFIX}"
        path.write_bytes(bytes(1000))
        os.utime(path, (number, number))
    folder.note_use(tmp_path / f"0{SUFFIX}")
    assert make_room(tmp_path, 1500, 4000) is None
    assert {entry.key for entry in entries(tmp_path)} == {"0", "3"}


def test_a_full_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SPARE_BYTES", 1 << 60)
    assert "are to stay free" in str(make_room(tmp_path, 1000, 4000))
    assert "--weight-cache-bytes" in str(make_room(tmp_path, 5000, 4000))


def test_files_of_writers_that_ended_are_removed(tmp_path: Path) -> None:
    (tmp_path / f"old{UNFINISHED}").write_bytes(b"")
    with entry_file.EntryWriter(tmp_path / f"{KEY}{SUFFIX}", KEY, "a model") as writer:
        make_room(tmp_path, 1000, 4000)
        (left,) = tmp_path.iterdir()
        assert left.name.startswith(KEY), "its writer is there"
        writer.finish()
    assert [file.name for file in tmp_path.iterdir()] == [f"{KEY}{SUFFIX}"]


def test_where_files_cannot_be_locked_the_age_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for name, used_s in (("old", 0.0), ("new", time.time())):
        path = tmp_path / f"{name}{UNFINISHED}"
        path.write_bytes(b"")
        os.utime(path, (used_s, used_s))
    assert folder.remove_unfinished(tmp_path) == 0
    assert [file.name for file in tmp_path.iterdir()] == [f"new{UNFINISHED}"]


def test_the_commands_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = folder.cache_folder() / f"{KEY}{SUFFIX}"
    path.parent.mkdir(parents=True)
    written(path)
    left = path.with_name(f"{path.name}.1{UNFINISHED}")
    left.write_bytes(b"cut")
    assert _run(CacheLsCommand) == 0
    assert not left.exists()
    assert "a model" in capsys.readouterr().out
    assert _run(CacheVerifyCommand) == 0
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert _run(CacheVerifyCommand) == 1
    assert f"damaged: {path}" in capsys.readouterr().out
    assert _run(CacheVerifyCommand, "--remove") == 0
    assert not path.exists()


def _run(command: Any, *words: str) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    made = command(None)
    made.add_arguments(parser)
    return int(made.run(parser.parse_args(list(words))))
