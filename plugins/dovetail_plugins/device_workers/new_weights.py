"""NewWeights: reads another checkpoint of the running model, and writes it over the weights in use.

What is read is a second model, loaded and repacked as the running one was, but for matrices that
are packed as the checkpoint has them: those are packed over the running ones once all else is known
to fit (in_place.py). So a checkpoint that does not fit is refused before a weight changes, and
every address stays: recorded steps, captured graphs and adapters remain valid. Weights alone, as a
trainer sends them, have the settings of the running model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from msgspec import structs
from torch import nn

from dovetail import registry
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.sources.weights_check import check_weights, weight_files
from dovetail.config.rules.machine.platform import available_bytes
from dovetail.errors import ConfigError, RequestError, listed
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.data.spec import ModelSpec, RunSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.layers.attention.kv_scales import stored_tensors
from dovetail.layers.moe.experts import Experts
from dovetail.runner.load.loader import GIVE_BACK_BYTES
from dovetail.runner.model_runner import ModelRunner
from dovetail_plugins.device_workers.in_place import InPlace, Writing
from dovetail_plugins.layers.stored.matrix_linear import MatrixLinear
from dovetail_plugins.load_formats._safetensors_header import read_entries
from dovetail_plugins.packed_weights.loading import wait_written
from dovetail_plugins.weight_transfer.memory_file import verify_key
from dovetail_plugins.weight_transfer.memory_format import MemoryFormat, files_alone, reading
from dovetail_plugins.weight_transfer.numbers import verify_numbers
from dovetail_plugins.weight_transfer.sent_folder import remove_sent

Pair = tuple[torch.Tensor, torch.Tensor]
"""A tensor in use, and what is to be copied over it."""
Files = tuple[tuple[str, int, int], ...]
Layout = tuple[Any, ...]
WHERE = "path"
ONE_MODEL = "name a checkpoint of the running model, such as a trainer saves."
AUTO = Selection(kind="load_format", name="auto", target="dovetail_plugins.load_formats.auto:Auto")
NOT_COMPARED = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version",
                "use_cache", "bos_token_id", "eos_token_id", "pad_token_id"}  # fmt: skip
"""Settings of config.json that do not change what a model computes."""
REGISTERED = ("_parameters", "_buffers", "_modules")
NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWeights:
    """A checkpoint that was read: its run, its files with their key, and where its tensors go."""

    run: RunSpec | None = None
    key: str = ""
    files: Files = ()
    layout: Layout = ()
    pairs: Sequence[Pair] = ()
    writings: Sequence[Writing] = ()


NOTHING = ReadWeights()


class NewWeights:
    """What may replace the weights of a rank's model. `release` returns memory to the system."""

    def __init__(self, runner: ModelRunner, release: Callable[[], None]) -> None:
        self._runner, self._release = runner, release
        self._read = self._mapped = NOTHING
        """What was read last; and what stays mapped: a trainer writes weights at the same places
        again, and mapping them costs half as much as reading them."""
        self._settings = runner.run.model.path
        """The folder or file with the settings of the weights in use."""

    def read(self, path: str, key: str = "") -> None:
        """Read a checkpoint, unless it was read already. `key` is what files of weights alone must
        have ("": any). Raises: RequestError if it cannot replace the weights in use.
        Mutates: self"""
        files = _files(path, key)
        if self._read.files == files and self._read.key == key:
            return
        self.drop()
        try:
            self._read = self._checked(path, key, files)
        except BaseException as error:
            self._release()
            if isinstance(error, ConfigError):
                raise RequestError(error.what, where=error.where, fix=error.fix) from error
            raise

    def _checked(self, path: str, key: str, files: Files) -> ReadWeights:
        """Return a checkpoint that can replace the weights. Raises: RequestError, ConfigError"""
        running, device = self._runner.run, self._runner.device
        verify_replaceable(running)
        if not files_alone(path):
            verify_alike(structs.replace(running.model, path=self._settings), path)
        model = cast(nn.Module, self._runner.model)
        is_first = running.rank.tensor_rank == 0  # what one rank refuses, no rank uses
        run = run_of(running, path, key, checks_numbers=is_first)
        layout = layout_of(files) if files_alone(path) else ()
        if layout and layout == self._mapped.layout:
            verify_again(self._mapped, key, checks_numbers=is_first)
            return replace(self._mapped, run=run, key=key, files=files)
        self._mapped = NOTHING
        in_place = InPlace(model)
        verify_room(files, running, device, in_place.num_bytes)
        if is_first and not files_alone(path):
            verify_all_numbers(run)
        pairs = list(pairs_of(model, in_place.read(run, device)))
        read = ReadWeights(
            run=run, key=key, files=files, layout=layout, pairs=pairs, writings=in_place.writings
        )
        if layout and in_place.is_complete:
            self._mapped = replace(read, pairs=[])
        return read

    @torch.inference_mode()
    def use(self, path: str) -> None:
        """Use what was read from a path. Raises: RequestError if nothing was. Mutates: the model,
        and the runner's run, by which it is loaded again"""
        read = self._read
        if read.run is None or read.run.model.path != path:
            raise RequestError("nothing was read from there.", where=WHERE, fix="read it first.")
        wait_written()
        verify_unchanged(read)
        for writing in read.writings:
            writing.write()
        for target, tensor in read.pairs:
            target.copy_(tensor)
        verify_unchanged(read)
        if self._runner.device.type == "cuda":
            torch.cuda.synchronize(self._runner.device)  # the copies may be freed before they end
        earlier, self._runner.run = self._runner.run.model.path, read.run
        self.drop()
        if not files_alone(path):
            self._settings = path
        if earlier != path:
            remove_sent(earlier)

    def drop(self) -> None:
        """Drop what was read. Mutates: self"""
        held_bytes = sum(tensor.nbytes for _, tensor in self._read.pairs)
        self._read = NOTHING
        if held_bytes >= GIVE_BACK_BYTES:
            self._release()


def _files(path: str, key: str) -> Files:
    """Return name, bytes and time of change of the weight files. Raises: RequestError"""
    alone = files_alone(path)
    if key and not alone and Path(path).exists():
        raise RequestError(
            "there are no weights alone.", where=WHERE, fix="leave out the key of a checkpoint."
        )
    found = alone or (weight_files(path) if Path(path).exists() else [])
    if not found:
        raise RequestError(f"{path} has no weights.", where=WHERE, fix=ONE_MODEL)
    facts = ((file, file.stat()) for file in found)
    return tuple((str(file), one.st_size, one.st_mtime_ns) for file, one in facts)


def layout_of(files: Files) -> Layout:
    """Return which file each is, and where its tensors lie in it. Raises: ConfigError"""
    paths = [Path(name) for name, _, _ in files]
    return tuple((path.stat().st_dev, path.stat().st_ino, *read_entries(path)) for path in paths)


def verify_again(mapped: ReadWeights, key: str, *, checks_numbers: bool) -> None:
    """Raise ConfigError unless mapped files that were read before have the key, and numbers."""
    paths = [Path(name) for name, _, _ in mapped.files]
    verify_key(paths, key)
    for tensor in (tensor for one in mapped.writings for _, tensor in one.pieces if checks_numbers):
        verify_numbers(str(list(tensor.shape)), tensor, str(paths[0]))
    verify_key(paths, key)


def verify_unchanged(read: ReadWeights) -> None:
    """Raise RequestError unless the files are those that were read."""
    assert read.run is not None
    path = read.run.model.path
    try:
        is_same = _files(path, read.key) == read.files
        if is_same and files_alone(path):
            verify_key([Path(name) for name, _, _ in read.files], read.key)
    except (ConfigError, RequestError, OSError):
        is_same = False
    if not is_same:
        fix = "write weights again only once the update is answered."
        raise RequestError("the weights were written meanwhile.", where=WHERE, fix=fix, status=409)


def run_of(run: RunSpec, path: str, key: str = "", *, checks_numbers: bool = True) -> RunSpec:
    """Return the run with another checkpoint, whose packed weights are not stored on disk."""
    is_alone = bool(files_alone(path))
    return structs.replace(
        run,
        model=structs.replace(run.model, path=path),
        load_format=reading(key, checks_numbers=checks_numbers)
        if is_alone
        else _format_of_folders(run),
        load_options={**run.load_options, "weight_cache_bytes": 0},
        shows_progress=False,
    )


def _format_of_folders(run: RunSpec) -> Selection:
    """Return how a checkpoint is read: as the first one was, unless that was not read at all or was
    sent by a trainer."""
    reader = registry.admin.load_selection(run.load_format)
    is_other = "random_weights" in reader.capabilities or issubclass(reader, MemoryFormat)
    return AUTO if is_other else run.load_format


def verify_replaceable(run: RunSpec) -> None:
    """Raise RequestError if a running model's weights are not all in memory, at fixed places, or if
    something was measured with them."""
    scales = "scales of the KV cache were measured with them (--calculate-kv-scales)"
    reasons = {
        "they are in host memory (--cpu-offload-gb)": bool(run.offload_bytes),
        "experts move between ranks (--enable-eplb)": run.expert_balance is not None,
        scales: run.kv_steps is not None,
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise RequestError(
            f"the weights of this server are not replaced: {reason}.",
            fix="leave the flag out, or start the server again with the new weights.",
            status=409,
        )


def verify_alike(model: ModelSpec, path: str) -> None:
    """Raise RequestError unless a checkpoint has the settings of the running model's, and
    ConfigError if its files are damaged."""
    if Path(path).is_dir():
        check_weights(path)
    new = load_model_facts(path)
    if Path(model.path).exists():
        model = load_model_facts(model.path)  # as it is in the file, without any flag's changes
        changed = sorted(_differences(_settings(model), _settings(new)))
    else:
        changed = [] if model.architecture == new.architecture else ["architectures"]
    if changed:
        raise RequestError(
            f"its settings differ from the running model's: {listed(changed, NAMES_SHOWN)}.",
            where=f"{path}/config.json",
            fix=ONE_MODEL,
        )


def _settings(model: ModelSpec) -> dict[str, Any]:
    return {"model": model.architecture, **(model.whole_config or model.hf_config)}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that both have, with other values. What only one has may be a default that
    another version of transformers writes down."""
    for name in (one.keys() & other.keys()) - NOT_COMPARED:
        mine, its = one[name], other[name]
        if isinstance(mine, Mapping) and isinstance(its, Mapping):
            yield from (f"{name}.{inner}" for inner in _differences(mine, its))
        elif mine != its:
            yield name


def verify_room(files: Files, run: RunSpec, device: torch.device, in_place: int = 0) -> None:
    """Raise RequestError if host memory has no room for a second copy of the weights but for those
    that take `in_place` bytes, which need none."""
    if device.type != "cpu":
        return  # the device's own allocator refuses
    rank = run.rank
    needed = sum(size for _, size, _ in files) // rank.world_size - in_place
    free = available_bytes() // rank.local_size
    if needed > free:
        raise RequestError(
            f"a second copy of the weights takes {needed >> 20} MiB, and {free >> 20} are free.",
            where=WHERE,
            fix="lower --kv-cache-memory-bytes, or start the server again with the new weights.",
            status=507,
        )


def verify_all_numbers(run: RunSpec) -> None:
    """Raise ConfigError if a checkpoint has a value that is not a number (NaN)."""
    load_format = cast(LoadFormat, registry.make(run.load_format))
    ignored = tuple(run.load_options.get("ignore_patterns", ()))
    checkpoint = Checkpoint(path=run.model.path, ignore_patterns=ignored)
    for name, tensor in load_format.tensors(checkpoint):
        verify_numbers(name, tensor, run.model.path)


def pairs_of(running: nn.Module, read: nn.Module) -> Iterator[Pair]:
    """Yield the tensors in use with those that replace them, each once. Raises: RequestError if one
    has no counterpart of its shape, type and layout."""
    mine, its = _tensors(running), _tensors(read)
    faults = [name for name in its if not _fits(mine.get(name), its[name])]
    faults += sorted({name for name, _ in {*_layouts(running)} ^ {*_layouts(read)}})
    if faults:
        raise RequestError(
            f"how these are stored depends on the weights: {listed(faults, NAMES_SHOWN)}.",
            where=WHERE,
            fix="start the server again with the new weights.",
            status=409,
        )
    done = set()
    for name, tensor in its.items():
        place = mine[name].data_ptr(), tensor.data_ptr()
        if tensor.nbytes and place not in done and place[0] != place[1]:
            done.add(place)
            yield mine[name], tensor


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _fits(target: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    return target is not None and (target.shape, target.dtype) == (tensor.shape, tensor.dtype)


def _layouts(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield what a model knows of its weights besides parameters and buffers, by name: how matrices
    are packed, the scales of its KV cache, and products that a layer has made of weights."""
    for name, child in module.named_modules():
        method = vars(child).get("method")
        if isinstance(method, MatrixLinear):
            yield name, method.layout
        if isinstance(child, Experts):
            yield name, str(sorted(child.slot_layouts()))
        for leaf, value in vars(child).items():
            if leaf not in REGISTERED and isinstance(value, dict) and _has_tensors(value):
                yield f"{name}.{leaf}", "made of weights"
    for name, tensor in stored_tensors(module):
        yield name, str(tensor.tolist())


def _has_tensors(value: Mapping[Any, Any]) -> bool:
    inner = (
        one for held in value.values() for one in (held if isinstance(held, tuple) else (held,))
    )
    return any(isinstance(one, torch.Tensor) for one in inner)
