"""A fake GPU on a CPU: tensors that say they lie on `cuda`, and a fault wherever that shows.

Each is a wrapper around a tensor of the CPU. An operation between tensors of both devices fails, as
it would there; one that makes the host wait is noted, and fails while `forbids_waits`. Knows no
memory of a device: storages, streams and events are not faked. `FakeCudaWorker` is the worker of
GPUs on it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from dovetail.interfaces.plugin import Info
from dovetail.runner.model_runner import ModelRunner
from dovetail_plugins.workers.cuda import CudaWorker
from support.fake_device import FakeDevice

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.is_nonzero.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_consecutive.default,
}
"""What reads a number of the device before it returns."""
HOPPER = SimpleNamespace(
    major=9, minor=0, multi_processor_count=132, shared_memory_per_multiprocessor=228 << 10
)
COMPOSITE = "CompositeImplicitAutograd"
INDEXED = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
}


class FakeCudaTensor(torch.Tensor):
    """A tensor on `cuda`; `inner` holds its numbers. To C++ it is one of `meta`, which has guards
    in every build of torch."""

    __slots__ = ("inner",)  # what hangs on a tensor beside it may be carried to another
    inner: torch.Tensor  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> FakeCudaTensor:
        with torch.inference_mode(False):  # views are refused otherwise
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=torch.device("meta"),
                requires_grad=inner.requires_grad,
            )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{function} outside of a fake GPU")


class FakeCuda(TorchDispatchMode):
    """Runs every operation on the wrapped tensors. `waits` tells where the host waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.forbids_waits = False
        self._pinned: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, named = tree_map(_numbered, (tuple(args), dict(kwargs or {})))
        if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), COMPOSITE):
            with self:  # inference mode hands these over whole
                return function.decompose(*args, **named)
        tensors = [t for t in tree_flatten((args, named))[0] if isinstance(t, torch.Tensor)]
        name = function.overloadpacket.__name__
        if name in ("is_pinned", "_pin_memory", "pin_memory"):
            return self._pin(name, args[0])
        device = named.get("device")
        to_device = device is not None and torch.device(device).type in ("cuda", "meta")
        if to_device:
            named["device"] = torch.device("cpu")
        is_pinned = bool(named.pop("pin_memory", None))
        is_moving = function is aten._to_copy.default
        if function is aten.copy_.default:
            self._note_copy(args[0], args[1], bool(args[2] if len(args) > 2 else False))
        elif is_moving and device is not None:
            self._note_move(tensors[0], to_device, bool(named.get("non_blocking")))
        else:
            self._check(function, args, tensors)
        out = function(*tree_map(_inner, args), **tree_map(_inner, named))
        if is_pinned:
            self._pinned.add(out.untyped_storage().data_ptr())
        stays = any(isinstance(t, FakeCudaTensor) for t in tensors) and device is None
        if function is aten.copy_.default:
            return args[0]
        return self._outer(out, tensors, wraps=to_device or stays)

    def _outer(self, out: Any, tensors: Sequence[torch.Tensor], *, wraps: bool) -> Any:
        """Return results as tensors of the device; those that were given are the same ones."""
        known = {id(t.inner): t for t in tensors if isinstance(t, FakeCudaTensor)}

        def outer(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) in known:
                return known[id(value)]
            return FakeCudaTensor(value) if wraps else value

        return tree_map(outer, out)

    def _check(self, function: Any, args: Any, tensors: Sequence[torch.Tensor]) -> None:
        played = [t for t in tensors if isinstance(t, FakeCudaTensor)]
        if not played:
            return
        if function in WAITING:
            self._wait(str(function))
        plain = [t for t in tensors if not isinstance(t, FakeCudaTensor) and t.dim()]
        if function in INDEXED:
            indices = [t for t in args[1] if t is not None]
            if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
                self._wait(f"{function} by a mask")
            if any(not isinstance(t, FakeCudaTensor) for t in indices):
                self._wait(f"{function} by indices of the host")
            plain = [t for t in plain if not any(t is one for one in indices)]
        if plain:
            shapes = [(type(t).__name__, tuple(t.shape)) for t in tensors]
            raise RuntimeError(f"{function}: tensors of cuda and cpu: {shapes}")

    def _note_copy(self, to: torch.Tensor, source: torch.Tensor, is_free: bool) -> None:
        if isinstance(to, FakeCudaTensor) == isinstance(source, FakeCudaTensor):
            return
        host = source if isinstance(to, FakeCudaTensor) else to
        if not (is_free and self._has_pinned(host)):
            self._wait("a copy between the host and the device")

    def _note_move(self, source: torch.Tensor, to_device: bool, is_free: bool) -> None:
        if isinstance(source, FakeCudaTensor) == to_device:
            return
        if not (to_device and is_free and self._has_pinned(source)):
            self._wait("a copy between the host and the device")

    def _has_pinned(self, host: torch.Tensor) -> bool:
        return not host.numel() or host.untyped_storage().data_ptr() in self._pinned

    def _pin(self, name: str, tensor: torch.Tensor) -> Any:
        if name == "is_pinned":
            return self._has_pinned(tensor)
        made = tensor.clone()
        self._pinned.add(made.untyped_storage().data_ptr())
        return made

    def _wait(self, why: str) -> None:
        where = [f"{one.filename}:{one.lineno} {one.name}" for one in traceback.extract_stack()]
        own = [line for line in where if "dovetail" in line]
        self.waits.append(f"{why}\n  " + "\n  ".join(own[-6:]))
        if self.forbids_waits:
            raise RuntimeError(f"the host waits: {self.waits[-1]}")


class _Made(TorchFunctionMode):
    """Makes tensors of lists where this build of torch has no device to make them on."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if function is torch.Tensor.tolist and isinstance(args[0], FakeCudaTensor):
            return args[0].cpu().tolist()
        device = named.get("device")
        is_made = function in (torch.tensor, torch.as_tensor) and device is not None
        if not is_made or torch.device(str(device)).type != "cuda":
            return function(*args, **named)
        if isinstance(args[0], FakeCudaTensor):
            return args[0].to(CUDA, named.get("dtype") or args[0].dtype)
        made = function(*args, **(named | {"device": "cpu"}))
        return made.to(CUDA)


def _numbered(value: Any) -> Any:
    """Return a device with its number: torch asks the device for it otherwise."""
    return CUDA if isinstance(value, torch.device) and value.type == "cuda" else value


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, FakeCudaTensor) else value


@contextmanager
def using(cuda: FakeCuda) -> Iterator[FakeCuda]:
    """Fake a GPU inside the with block; Triton's interpreter reads the wrapped tensors."""
    from triton.runtime import interpreter

    run = interpreter.GridExecutor.__call__

    def launch(self: Any, *args: Any, **named: Any) -> Any:
        for value in (*args, *named.values()):
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeCudaTensor):
                raise RuntimeError(f"{self.fn.__name__}: a kernel was given a tensor of the host")
        with _disable_current_modes():
            return run(
                self,
                *(_inner(one) for one in args),
                **{name: _inner(one) for name, one in named.items()},
            )

    with ExitStack() as stack:
        for thing, name, double in (
            (interpreter.GridExecutor, "__call__", launch),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "get_device_properties", lambda device: HOPPER),
            (torch.cuda, "get_device_capability", lambda device: (HOPPER.major, HOPPER.minor)),
            (torch.cuda, "current_stream", lambda device=None: None),
            (torch.cuda, "Event", _Event),
        ):
            stack.enter_context(patch.object(thing, name, double))
        stack.enter_context(cuda)
        stack.enter_context(_Made())
        yield cuda


class _Event:
    """A point in the device's work, which is done as soon as it is asked for."""

    def record(self, stream: None = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class FakeCudaDevice(FakeDevice):
    """The calls of a GPU. `num_replays` counts captured steps that ran."""

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


class FakeCudaWorker(CudaWorker):
    """Chosen for a CPU, computes on `cuda`."""

    info = Info(summary="test worker: a fake GPU on a CPU", devices=("cpu",))

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return None

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        return []

    def _open_device(self) -> torch.device:
        self.memory = SimpleNamespace(release=lambda: None)  # type: ignore[assignment]
        return CUDA

    def load(self) -> None:
        self._runner = ModelRunner(self.run, self.device, FakeCudaDevice())
        self._runner.load()
