"""Files are read ahead by as many threads as were asked for, and no farther."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.interfaces.load_format import Checkpoint
from dovetail.runner.load.loader import reading
from dovetail_plugins.load_formats import _ahead
from dovetail_plugins.load_formats.safetensors import Safetensors, SafetensorsOptions
from dovetail_testing.tiny.models import write_tiny_checkpoint


class Watch:
    """Stands in for the reading of a span and keeps who reads what."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, path: Path, start: int, num_bytes: int, stop: threading.Event) -> None:
        with self._lock:
            self.names.append(path.name)
            self.running += 1
            self.most = max(self.most, self.running)
        stop.wait(0.05)
        with self._lock:
            self.running -= 1


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for number in range(6):
        save_file({f"t{number}": torch.ones(4)}, tmp_path / f"model-{number}.safetensors")
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize(("num_threads", "seen"), [(1, 1), (3, 3), (None, 2)])
def test_as_many_threads_and_files_as_asked_for(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, num_threads: int | None, seen: int
) -> None:
    watch = Watch()
    monkeypatch.setattr(_ahead, "read_span", watch)
    checkpoint = Checkpoint(path=str(files[0].parent), num_workers=num_threads)
    tensors = Safetensors(SafetensorsOptions()).tensors(checkpoint)
    next(tensors)
    deadline_s = time.monotonic() + 5
    while len(watch.names) < seen and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert sorted(watch.names) == [file.name for file in files[:seen]]
    assert watch.most == seen
    assert len(list(tensors)) == len(files) - 1
    assert watch.most <= seen
    assert not [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


def test_a_large_file_is_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(_ahead, "read_span", watch)
    monkeypatch.setattr(_ahead, "SPAN_BYTES", 100)
    path = tmp_path / "large"
    path.write_bytes(bytes(350))
    with _ahead.reading_ahead([path], 4) as reach:
        reach(0)
        deadline_s = time.monotonic() + 5
        while len(watch.names) < 4 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert len(watch.names) == 4


def test_leaving_stops_a_thread_at_once(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(2**20))
    stop = threading.Event()
    stop.set()
    _ahead.read_span(path, 0, 2**40, stop)
    _ahead.read_span(tmp_path / "absent", 0, 1, threading.Event())


def test_the_flag_reaches_the_load_format(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "m", "LlamaForCausalLM")
    fields = {"model": str(folder), "max_parallel_loading_workers": 5}
    with reading(resolve(Config.from_fields(fields)).run, torch.device("cpu"), None) as checkpoint:
        assert checkpoint.num_workers == 5
