"""Restores packed weights while a model loads, and writes those that were not there.

Entries are written in the background when the model is loaded: the server is ready before.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from torch import nn

from dovetail import registry
from dovetail.config.checkpoint.sources.weights_check import weight_files
from dovetail.config.rules.machine.platform import available_bytes
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.packs import PACKED_LAYERS
from dovetail_kernels.cpu.blocks import SCRATCH
from dovetail_kernels.cpu.library import library
from dovetail_kernels.gemm.matrix import Matrix, runs_natively
from dovetail_plugins.packed_weights import entry_file
from dovetail_plugins.packed_weights.bounds import is_larger_than_memory
from dovetail_plugins.packed_weights.entry_file import EntryWriter, MappedEntry, Place, natives_of
from dovetail_plugins.packed_weights.folder import (
    SUFFIX,
    cache_folder,
    is_checked,
    make_room,
    note_use,
    remove_unfinished,
)
from dovetail_plugins.packed_weights.key import key_of

log = logging.getLogger(__name__)

Follow = Callable[[nn.Module], None]
"""Takes a loaded model, once."""
WRITER = "weight-cache"
"""The name of threads that write."""
LEAST_BYTES = 128 << 20
"""Smaller models are packed again: that takes less than a second."""


class Load:
    """The matrices of one load: restored ones and new ones.

    With a `writer` a matrix goes to the disk as soon as it is made, and the layer gets the file's
    memory in its place: a model may then be larger than this machine's.
    """

    def __init__(
        self, restored: Mapping[str, list[Matrix]], writer: EntryWriter | None = None
    ) -> None:
        self._restored, self._writer = restored, writer
        self.mapped_places: list[Place] = []
        self.names = frozenset(key.rpartition("#")[0] for key in restored)
        self._uses: dict[str, int] = defaultdict(int)
        self._new: dict[str, list[Matrix]] = {}
        self._left_out: set[str] = set()

    def matrix(self, name: str, make: Callable[[], Matrix]) -> Matrix:
        """Return the next matrix of a layer's name: experts have one each. Mutates: self"""
        key = f"{name}#{self._uses[name]}"
        self._uses[name] += 1
        if key in self._restored:
            return _joined(self._restored[key])
        if name in self.names:
            raise AssertionError(f"{key} is missing in the weight cache, other parts are there")
        matrix = make()
        parts = natives_of(matrix)
        if parts is None:
            self._left_out.add(name)
            return matrix
        if self._writer is None:
            self._new[key] = parts
            return matrix
        try:
            self._writer.add(key, parts)
            mapped = self._writer.mapped(key)
        except OSError as error:
            raise _no_room(self._writer.folder, str(error)) from error
        self.mapped_places += self._writer.places(key, mapped)
        return _joined(mapped)

    @property
    def new(self) -> dict[str, list[Matrix]]:
        """Return new matrices, of layers all of whose matrices can be written."""
        return {k: m for k, m in self._new.items() if k.rpartition("#")[0] not in self._left_out}

    def finish(self) -> None:
        """Complete what the writer has written. Raises: ConfigError"""
        if self._writer is None or self._left_out:
            return
        try:
            self._writer.finish()
        except OSError as error:
            raise _no_room(self._writer.folder, str(error)) from error


_LOAD: ContextVar[Load | None] = ContextVar("weight_cache_load", default=None)


def restored_or_made(name: str, make: Callable[[], Matrix]) -> Matrix:
    """Return a layer's matrix from the cache while a model loads, or as `make` makes it."""
    load = _LOAD.get()
    return make() if load is None else load.matrix(name, make)


@contextmanager
def loading(run: RunSpec) -> Iterator[Follow | None]:
    """Restore what there is of a model's packed weights within a with block; if there is nothing,
    write them: after it, in the background, or within it where they do not fit into memory. Then
    the block gets what the loaded model is to be passed to, which follows it while it runs."""
    path = _path_of(run)
    if path is None:
        with SCRATCH.reused():
            yield None
        return
    remove_unfinished(path.parent)
    is_large = _is_large(run)
    entry = _read(path, checks_tensors=not is_large)
    with ExitStack() as stack:
        writer = None
        if is_large:
            log.info("the weights are larger than the free memory: they are read from disk")
            if entry is None:
                writer = stack.enter_context(_writer(path, run))
        load = Load({} if entry is None else entry.layers, writer)
        tokens = _LOAD.set(load), PACKED_LAYERS.set(load.names)
        try:
            with SCRATCH.reused():
                yield partial(_follow, run, path, load, entry, writer) if is_large else None
        finally:
            _LOAD.reset(tokens[0])
            PACKED_LAYERS.reset(tokens[1])
            if entry is not None:
                os.close(entry.descriptor)
        load.finish()
    if entry is None and load.new and num_bytes_of(load.new) >= LEAST_BYTES:
        bound = int(run.load_options["weight_cache_bytes"])
        threading.Thread(
            target=_write, args=(path, run.model.path, load.new, bound), daemon=True,
            name=WRITER,
        ).start()  # fmt: skip


def _follow(
    run: RunSpec,
    path: Path,
    load: Load,
    entry: MappedEntry | None,
    writer: EntryWriter | None,
    model: nn.Module,
) -> None:
    """Let a model that is larger than memory run from its entry. Mutates: the model's hooks"""
    from dovetail_plugins.packed_weights.from_disk import FromDisk
    from dovetail_plugins.packed_weights.residency import Residency, reason_against

    reason = "experts move between ranks" if run.expert_placement else reason_against()
    if reason is not None:
        log.info("the system alone decides which weights are in memory: %s", reason)
        return
    places, descriptor = load.mapped_places, writer.descriptor() if writer else 0
    if entry is not None:
        places = [place for name in entry.layers for place in entry.places(name)]
        descriptor = os.dup(entry.descriptor)
    FromDisk(Residency(descriptor, str(path)), places, run.rank.local_size).attach(model)


def _is_large(run: RunSpec) -> bool:
    """Return whether the packed weights will not fit into the free memory."""
    return is_larger_than_memory(_weight_bytes(run), available_bytes())


def _weight_bytes(run: RunSpec) -> int:
    """Return the bytes of the model's own weight files: others may lie in their folder."""
    return sum(file.stat().st_size for file in weight_files(run.model.path))


def _writer(path: Path, run: RunSpec) -> EntryWriter:
    """Return the writer of an entry that must be written. Raises: ConfigError"""
    num_bytes = _weight_bytes(run)
    try:
        reason = make_room(path.parent, num_bytes, int(run.load_options["weight_cache_bytes"]))
        if reason is None:
            return EntryWriter(path, path.name.removesuffix(SUFFIX), run.model.path)
    except OSError as error:
        reason = str(error)
    raise _no_room(path.parent, f"{num_bytes >> 20} MiB: {reason}")


def _no_room(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        "the weights are larger than the free memory, and cannot be written to "
        f"{folder}: {reason}.",
        where="model",
        fix="free memory or disk space, set XDG_CACHE_HOME to a larger disk, or use a model with "
        "fewer bits.",
    )


def _joined(parts: list[Matrix]) -> Matrix:
    """Return the matrices of a layer as one."""
    from dovetail_plugins.layers.stored.stored_linear import Several

    return parts[0] if len(parts) == 1 else Several(parts)


def wait_written() -> None:
    """Wait until no packed weights are being written: what is written must not change."""
    for thread in threading.enumerate():
        if thread.name == WRITER:
            thread.join()


def _path_of(run: RunSpec) -> Path | None:
    """Return the file of a run's packed weights, None if it has none."""
    native = library()
    bound = run.load_options.get("weight_cache_bytes") or 0
    if not bound or native is None or run.device != "cpu" or run.offload_bytes:
        return None
    load_format = registry.admin.require_selection(run.load_format)
    if "random_weights" in load_format.capabilities:
        return None
    if not runs_natively(run.device, dtype_of(run.model.dtype)):
        return None
    return cache_folder() / (key_of(run, native.path.name, native.isa) + SUFFIX)


def _read(path: Path, *, checks_tensors: bool = True) -> MappedEntry | None:
    """Return an entry; None if there is none or a damaged one, which is removed.

    `checks_tensors`: compare its bytes with their checksums unless that was done since it was
    written.
    """
    was_checked = is_checked(path)
    checks_tensors = checks_tensors and not was_checked
    try:
        key = path.name.removesuffix(SUFFIX)
        found = entry_file.mapped_entry(path, key, checks_tensors=checks_tensors)
    except FileNotFoundError:
        return None
    except (OSError, entry_file.Damaged) as error:
        log.warning("the packed weights in %s are not used: %s", path, error)
        if isinstance(error, entry_file.Damaged):
            path.unlink(missing_ok=True)
        return None
    note_use(path, is_checked=checks_tensors or was_checked)
    log.info("mapped packed weights of %s", path)
    return found


def _write(path: Path, model: str, layers: dict[str, list[Matrix]], bound_bytes: int) -> None:
    """Write an entry, and compare it with its checksums: the next start need not. A fault is logged
    and changes nothing else."""
    key = path.name.removesuffix(SUFFIX)
    try:
        reason = make_room(path.parent, num_bytes_of(layers), bound_bytes)
        if reason is None:
            entry_file.write(path, key, model, layers)
            log.info("wrote packed weights to %s", path)
            entry_file.check(path, key)
            note_use(path, is_checked=True)
            return
    except OSError as error:
        reason = str(error)
    except entry_file.Damaged as error:
        path.unlink(missing_ok=True)
        reason = str(error)
    log.warning("packed weights are not stored in %s: %s", path.parent, reason)


def num_bytes_of(layers: Mapping[str, list[Matrix]]) -> int:
    """Return the bytes of packed weights."""
    packed = [one.native for parts in layers.values() for one in parts]
    return sum(one.num_bytes for one in packed if one is not None)
