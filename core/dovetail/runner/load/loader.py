"""Loader: builds the selected model on a device and fills its weights.

Independent of file formats and layers: the load format reads, `layers.weights` fills and repacks.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import msgspec
import torch
from torch import nn
from tqdm import tqdm

from dovetail import registry
from dovetail.config.checkpoint.quant_files import MALFORMED, build_method
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec, RunSpec, Selection
from dovetail.interfaces.load_format import Checkpoint, LoadFormat, Progress
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.quantization import QuantMethod
from dovetail.layers.attention.kv_scales import divert
from dovetail.layers.class_rows import with_class_rows
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.placement import WeightHolder
from dovetail.layers.stages import is_elsewhere
from dovetail.layers.weights import (
    Finish,
    checkpoint_shapes,
    finish_weights,
    load_parameters,
    load_weights,
    own_finish,
    weight_map_of,
)
from dovetail.registry.blame import blaming
from dovetail.runner.load.offload import Offload

log = logging.getLogger(__name__)

GIVE_BACK_BYTES = 64 << 20
"""Free memory goes back to the system after this many repacked bytes: it takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, and how long it took to build it and to fill its weights. `inner` gets
    the states within the model that somebody reads, by the layer that follows them."""

    model: Model
    build_s: float
    weights_s: float
    inner: dict[int, torch.Tensor | None] = field(default_factory=dict)

    @property
    def module(self) -> nn.Module:
        """Return the model as a torch module."""
        return cast(nn.Module, self.model)


def load_model(run: RunSpec, device: torch.device) -> LoadedModel:
    """Build the model on the device, fill its weights, and leave it in evaluation mode.

    Raises: ConfigError naming the file, layer or flag at fault.
    """
    start_s = time.perf_counter()
    quant = method_of(run)
    offload = None
    if run.offload_bytes:
        layers = run.rank.layers(run.model.num_layers)
        offload = Offload(run.offload_bytes, len(layers), device, first=layers.start)
    with quant.loading(run) as follow:
        with offload.building() if offload is not None else nullcontext():
            model = build_model(run, device, quant)
        built_s = time.perf_counter()
        finish = GivingBack(own_finish if offload is None else offload.finish)
        fill_from_files(model, run, device, quant, finish=finish)
        if follow is not None:
            follow(model)
    if offload is not None:
        offload.attach(model)
    filled_s = time.perf_counter()
    model.eval().requires_grad_(False)
    give_memory_back()
    log.info(
        "loaded %s on %s: build %.2f s, weights %.2f s, %.1f MiB",
        run.model.architecture,
        device,
        built_s - start_s,
        filled_s - built_s,
        num_bytes(model) / 2**20,
    )
    return LoadedModel(
        model=cast(Model, model), build_s=built_s - start_s, weights_s=filled_s - built_s
    )


def load_unpacked(run: RunSpec) -> nn.Module:
    """Return the rank's filled model on the CPU, its parameters as in the checkpoint, not repacked.

    Raises: ConfigError as load_model does.
    """
    device = torch.device("cpu")
    quant = method_of(run)
    model = build_model(run, device, quant)
    fill_from_files(model, run, device, quant, repacks=False)
    return model


def method_of(
    run: RunSpec, names: Callable[[str], Iterable[str]] = lambda name: (name,)
) -> QuantMethod:
    """Return the quantization method, after it has read the checkpoint's headers; `names` gives the
    model's names of a tensor. Raises: ConfigError"""
    quant = build_method(run.quantization, run.model)
    load_format = cast(LoadFormat, registry.make(run.load_format))
    if "from_checkpoint" in quant.capabilities and "divided" not in load_format.capabilities:
        ignored = tuple(run.load_options.get("ignore_patterns", ()))
        checkpoint = Checkpoint(path=run.model.path, ignore_patterns=ignored)
        headers = load_format.headers(checkpoint) or ()
        quant.read_headers(replace(one, name=own) for one in headers for own in names(one.name))
    return quant


class GivingBack:
    """A Finish that regularly returns memory freed by repacking to the system."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._freed_bytes = 0

    def __call__(self, holder: WeightHolder) -> None:
        """Let a layer repack its filled parameters. Mutates: holder"""
        self._freed_bytes += num_bytes(holder)
        self._finish(holder)
        if self._freed_bytes >= GIVE_BACK_BYTES:
            self._freed_bytes = 0
            trim_heap()


def give_memory_back() -> None:
    """Return memory that loading has freed to the system."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return free memory to the system; glibc would hold on to it."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def num_bytes(module: nn.Module) -> int:
    """Return the bytes of all parameters and buffers, counting shared ones once."""
    bytes_by_address = {t.data_ptr(): t.nbytes for t in (*module.parameters(), *module.buffers())}
    return sum(bytes_by_address.values())


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make `dtype` torch's default inside a with block."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def build_context(run: RunSpec, device: torch.device, quant: QuantMethod) -> BuildContext:
    """Return the context for a model's constructor."""
    return BuildContext(
        model=run.model,
        quant=quant,
        device=str(device),
        rank=run.rank,
        max_tokens=run.max_model_tokens,
        uses_fused_ops=run.uses_fused_ops,
        expert_placement=run.expert_placement,
        expert_balance=run.expert_balance,
        divides_encoders=run.encoder_mode == "weights",
        rope_factors=() if run.adapters is None else run.adapters.rope_factors,
    )


def build_model(run: RunSpec, device: torch.device, quant: QuantMethod) -> nn.Module:
    """Return the model with empty parameters. Raises: ConfigError"""
    context = build_context(run, device, quant)
    with building(run, run.model_plugin, device):
        plugin = registry.admin.require_selection(run.model_plugin)
        model = plugin(registry.admin.build_options(run.model_plugin), context)
        names = run.model.hf_config.get("published_names", {})  # lists, as JSON has them
        model.published_names = msgspec.convert(names, WeightMap)
        return cast(nn.Module, model)


@contextmanager
def building(run: RunSpec, selection: Selection, device: torch.device) -> Iterator[None]:
    """Create tensors on the device, in the model's dtype, in a with block. Raises: ConfigError"""
    try:
        making = blaming("making the model")  # a plugin's own fault is not config.json's
        with making, default_dtype(dtype_of(run.model.dtype)), device:
            yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the weights do not fit into the memory of {device}",
            where="model",
            fix="use a smaller or quantized model, or more devices.",
        ) from error
    except (*MALFORMED, RuntimeError) as error:
        log.debug("%s could not be made", selection.target, exc_info=error)
        said = str(error).partition("\n")[0].rstrip(".")  # some list everything they know after it
        raise ConfigError(
            f"{run.model.architecture} cannot be created: {type(error).__name__}: {said}.",
            where=str(Path(run.model.path) / "config.json"),
            fix="check the values in config.json; --log-level debug shows where it failed.",
        ) from error


@torch.inference_mode()
def fill_from_files(
    module: nn.Module,
    run: RunSpec,
    device: torch.device,
    quant: QuantMethod,
    *,
    repacks: bool = True,
    finish: Finish = own_finish,
) -> None:
    """Fill every parameter from the checkpoint and let layers repack them. Mutates: module"""
    model = cast(Model, module)
    if "no_weights" in model.capabilities:
        finish_weights(module, finish)
        return
    load_format = cast(LoadFormat, registry.make(run.load_format))
    weight_map = weight_map_of(model)
    shapes = None
    if "random_weights" in load_format.capabilities:
        shapes = checkpoint_shapes(module, weight_map)
    is_divided = "divided" in load_format.capabilities
    has_stages = run.rank.num_stages > 1 and not run.model.class_tokens  # classes need every table
    is_skipped = _skip(module, weight_map) if has_stages and not is_divided else None
    with reading(run, device, shapes, is_skipped) as checkpoint:
        tensors = load_format.tensors(checkpoint)
        if run.model.class_tokens and not is_divided:
            tensors = with_class_rows(tensors, module, weight_map, run.model)
        if is_skipped is not None:
            tensors = ((name, tensor) for name, tensor in tensors if not is_skipped(name))
        if is_divided:
            diverted = divert(module, weight_map, tensors)
            load_parameters(module, diverted, run.rank, finish=finish)
        else:
            fill(module, tensors, quant, run.rank, repacks=repacks, finish=finish)


def _skip(module: nn.Module, weight_map: WeightMap) -> Callable[[str], bool]:
    """Return a predicate: does only another stage need the tensor of this name?"""
    return lambda name: is_elsewhere(module, weight_map, name)


def fill(
    module: nn.Module,
    tensors: Iterable[tuple[str, torch.Tensor]],
    quant: QuantMethod,
    rank: RankSpec,
    *,
    repacks: bool = True,
    finish: Finish = own_finish,
) -> None:
    """Fill every parameter with the checkpoint's tensors. Mutates: module

    Raises: ConfigError that lists missing, unexpected and misfitting names.
    """
    weight_map = weight_map_of(cast(Model, module))
    stored = quant.checkpoint_tensors(divert(module, weight_map, tensors))
    load_weights(module, weight_map, stored, rank, quant.ignored, repacks=repacks, finish=finish)


@contextmanager
def reading(
    run: RunSpec,
    device: torch.device,
    shapes: Mapping[str, tuple[tuple[int, ...], str]] | None,
    is_skipped: Callable[[str], bool] | None = None,
) -> Iterator[Checkpoint]:
    """Yield the checkpoint for a load format, with a progress bar while it is read."""
    with _progress(run.shows_progress) as progress:
        yield Checkpoint(
            path=run.model.path,
            device=str(device),
            ignore_patterns=tuple(run.load_options.get("ignore_patterns", ())),
            shapes=shapes,
            seed=run.seed,
            download_dir=run.load_options.get("download_dir"),
            progress=progress,
            num_workers=run.load_options.get("workers"),
            rank=run.rank,
            is_skipped=is_skipped,
        )


@contextmanager
def _progress(is_shown: bool) -> Iterator[Progress | None]:
    """Yield a progress callback for the load format, shown as a bar if stderr is a terminal."""
    if not is_shown or not sys.stderr.isatty():
        yield None
        return
    with tqdm(desc="weights", unit="B", unit_scale=True, unit_divisor=1024, leave=False) as bar:

        def report(done_bytes: int, all_bytes: int) -> None:
            bar.total = all_bytes
            bar.update(done_bytes - bar.n)

        yield report
