"""LoadFormat: every tensor once, bit for bit; damaged files are errors that name the file."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail_testing.checkpoints import (
    code_running_pickle,
    readable_folders,
    sample_tensors,
    weight_file,
)
from dovetail_testing.contract import requires, skipping_unavailable, without

SHAPES = {"a.weight": ((4, 3), "float32"), "b": ((2,), "bfloat16"), "c": ((), "float16")}


@pytest.fixture
def load_format(plugin: Any) -> LoadFormat:
    """Return the format with its default options."""
    new_format: LoadFormat = plugin(plugin.Options())
    return new_format


@pytest.fixture
def folders(plugin: Any, tmp_path: Path) -> dict[str, Path]:
    """Return checkpoints of every layout the format reads; skip without what writes them."""
    with skipping_unavailable():
        return readable_folders(plugin, tmp_path, sample_tensors())


def read(load_format: LoadFormat, folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """Return all tensors of a folder; fail when a name comes twice."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in load_format.tensors(Checkpoint(path=str(folder), **changes)):
        assert name not in found, f"{name} came twice"
        found[name] = tensor.clone()
    return found


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Assert equal names, dtypes, shapes and bytes."""
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name], tensor), name


class TestLoadFormat:
    """Clauses of load formats."""

    kind = "load_format"

    @without("random_weights")
    def test_reads_something(self, folders: dict[str, Path]) -> None:
        """The kit has a checkpoint that it reads (else it implements write_sample)."""
        assert folders

    @without("random_weights")
    def test_every_tensor_once(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """Names, dtypes, shapes and bytes are those that were written, at the second read too."""
        for folder in folders.values():
            for _ in range(2):
                assert_same(read(load_format, folder), sample_tensors())

    @without("random_weights")
    def test_headers_tell_what_is_read(
        self, load_format: LoadFormat, folders: dict[str, Path]
    ) -> None:
        """Headers, if the format has them, match the tensors it yields."""
        for folder in folders.values():
            headers = load_format.headers(Checkpoint(path=str(folder)))
            if headers is None:
                continue
            listed = {h.name: (f"torch.{h.dtype}", h.shape, h.num_bytes) for h in headers}
            assert listed == {
                name: (str(tensor.dtype), tuple(tensor.shape), tensor.nbytes)
                for name, tensor in read(load_format, folder).items()
            }

    @without("random_weights")
    def test_truncated_file(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """A file cut short is a ConfigError that names it, at any cut."""
        for folder in folders.values():
            file = weight_file(folder)
            whole = file.read_bytes()
            for size in (0, 4, 40, len(whole) // 2, len(whole) - 1):
                file.write_bytes(whole[:size])
                with pytest.raises(ConfigError) as raised:
                    read(load_format, folder)
                assert file.name in str(raised.value), size

    @without("random_weights")
    def test_damaged_head(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """A file whose first bytes have wrong sizes is a ConfigError, not a huge allocation."""
        for folder in folders.values():
            file = weight_file(folder)
            whole = file.read_bytes()
            for head in (b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\x00" * 8):
                file.write_bytes(head + whole[8:])
                with pytest.raises(ConfigError):
                    read(load_format, folder)

    @without("random_weights")
    def test_missing_files(self, load_format: LoadFormat, tmp_path: Path) -> None:
        """No folder, and a folder without weights, are ConfigErrors that name it."""
        empty = tmp_path / "empty_folder"
        empty.mkdir()
        for folder in (empty, tmp_path / "no_such_folder"):
            with pytest.raises(ConfigError, match=folder.name):
                read(load_format, folder)

    @without("random_weights")
    def test_missing_shard(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """A shard that the index names and the folder lacks is a ConfigError that names it."""
        for folder in (f for name, f in folders.items() if name.startswith("sharded")):
            missing = weight_file(folder)
            missing.unlink()
            with pytest.raises(ConfigError) as raised:
                read(load_format, folder)
            assert missing.name in str(raised.value)

    @without("random_weights")
    def test_runs_no_code(
        self, load_format: LoadFormat, folders: dict[str, Path], tmp_path: Path
    ) -> None:
        """A pickle that calls a program is refused and calls nothing."""
        trace = tmp_path / "code_ran"
        for folder in folders.values():
            weight_file(folder).write_bytes(code_running_pickle(trace))
            with pytest.raises(ConfigError):
                read(load_format, folder)
        assert not trace.exists()

    @without("random_weights")
    def test_ignores_patterns(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """Files that match ignore_patterns are not read, even when they are broken."""
        for folder in folders.values():
            suffix = weight_file(folder).suffix
            (folder / f"extra_model{suffix}").write_bytes(b"broken")
            found = read(load_format, folder, ignore_patterns=("extra_*",))
            assert_same(found, sample_tensors())

    @without("random_weights")
    def test_progress_rises_to_the_end(
        self, load_format: LoadFormat, folders: dict[str, Path]
    ) -> None:
        """Progress is (done, all) in bytes, never falls, and ends with all done."""
        for folder in folders.values():
            calls: list[tuple[int, int]] = []
            read(load_format, folder, progress=lambda done, total, c=calls: c.append((done, total)))
            assert calls
            done = [call[0] for call in calls]
            assert done == sorted(done)
            assert calls[-1][0] == calls[-1][1] > 0

    @without("random_weights")
    def test_may_be_left_early(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """A caller that stops after one tensor leaves nothing that hinders the next read."""
        for folder in folders.values():
            tensors = load_format.tensors(Checkpoint(path=str(folder)))
            next(tensors)
            del tensors
            assert_same(read(load_format, folder), sample_tensors())

    @requires("lazy")
    def test_keeps_no_tensor(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """Once the caller drops a tensor it is gone: at most one more than the caller's is held."""
        for folder in folders.values():
            alive: list[weakref.ref[torch.Tensor]] = []
            for _, tensor in load_format.tensors(Checkpoint(path=str(folder), shapes=SHAPES)):
                alive.append(weakref.ref(tensor))
                del tensor
                assert sum(ref() is not None for ref in alive) <= 1

    @requires("writes_cache")
    def test_written_cache_is_read(self, load_format: LoadFormat, folders: dict[str, Path]) -> None:
        """The first read leaves files next to the originals, and the second gives the same."""
        for folder in folders.values():
            before = set(folder.rglob("*"))
            read(load_format, folder)
            assert set(folder.rglob("*")) > before
            assert_same(read(load_format, folder), sample_tensors())

    @requires("writes")
    def test_reads_what_it_writes(
        self, plugin: Any, load_format: LoadFormat, tmp_path: Path
    ) -> None:
        """The tensors come back, and the reported bytes are the size of its files."""
        with skipping_unavailable():
            size_bytes = plugin.write(str(tmp_path), sample_tensors().items(), rank=RankSpec())
        assert size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
        assert_same(read(load_format, tmp_path), sample_tensors())

    @requires("divided")
    @requires("writes")
    def test_ranks_read_their_own(
        self, plugin: Any, load_format: LoadFormat, tmp_path: Path
    ) -> None:
        """Each rank's tensors, written next to each other, come back only to that rank."""
        for number in range(2):
            rank = RankSpec(rank=number, world_size=2, tensor_rank=number, tensor_size=2)
            mine = {name: t + number for name, t in sample_tensors().items()}
            plugin.write(str(tmp_path), mine.items(), rank=rank)
        for number in range(2):
            rank = RankSpec(rank=number, world_size=2, tensor_rank=number, tensor_size=2)
            mine = {name: t + number for name, t in sample_tensors().items()}
            assert_same(read(load_format, tmp_path, rank=rank), mine)

    @requires("random_weights")
    def test_invents_what_is_wanted(self, load_format: LoadFormat, tmp_path: Path) -> None:
        """Exactly the wanted names, shapes and dtypes, finite, and the same for the same seed."""
        first = read(load_format, tmp_path, shapes=SHAPES, seed=1)
        found = {name: (tuple(t.shape), str(t.dtype)[6:]) for name, t in first.items()}
        assert found == SHAPES
        assert all(tensor.isfinite().all() for tensor in first.values())
        assert_same(read(load_format, tmp_path, shapes=SHAPES, seed=1), first)
        other = read(load_format, tmp_path, shapes=SHAPES, seed=2)
        assert not torch.equal(other["a.weight"], first["a.weight"])

    @requires("random_weights")
    def test_invents_order_does_not_matter(self, load_format: LoadFormat, tmp_path: Path) -> None:
        """A tensor is the same whatever other tensors are wanted: ranks agree."""
        whole = read(load_format, tmp_path, shapes=SHAPES, seed=1)
        part = read(load_format, tmp_path, shapes={"b": SHAPES["b"]}, seed=1)
        assert torch.equal(part["b"], whole["b"])
