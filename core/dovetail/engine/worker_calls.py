"""Calls of worker methods by name, and the extension class that adds methods to a worker.

Nothing is pickled: arguments and results consist of JSON types and bytes. A function is sent as its
name, which every rank imports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

import msgspec

from dovetail import registry
from dovetail.engine.faults import error_of
from dovetail.engine.messages import ErrorMessage
from dovetail.errors import ConfigError, DovetailError, PluginError, RequestError
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.worker import Worker
from dovetail.registry.files import import_target

logger = logging.getLogger(__name__)

FLAG = "--worker-extension-cls"
NOT_SENT = "give numbers, texts, bytes, null, and lists and objects of them."
NOT_RETURNED = "return numbers, texts, bytes, None, and lists and dicts of them."
TIMED_OUT, FAILED = 504, 500


def make_worker(selection: Selection, run: RunSpec) -> Worker:
    """Return a rank's worker, with the methods of the run's extension. Raises: ConfigError"""
    plugin = cast(type[Worker], registry.admin.load_selection(selection))
    options = registry.admin.build_options(selection)
    if not run.worker_extension:
        return plugin(options, run)
    extension = _extension(run.worker_extension)
    added = _names(extension)
    _verify_apart(added, set(dir(plugin)), run.worker_extension, plugin)
    extended = cast(type[Worker], type(plugin.__name__, (plugin, extension), {}))
    worker = extended(options, run)
    _verify_apart(added, set(vars(worker)), run.worker_extension, plugin)
    return worker


def _extension(target: str) -> type:
    """Return the class that a target names. Raises: ConfigError"""
    try:
        found = import_target(target)
    except PluginError as error:
        raise ConfigError(error.what, where=f"{FLAG} {target}", fix=error.fix) from error
    if not isinstance(found, type):
        raise ConfigError(
            "is not a class.", where=f"{FLAG} {target}", fix="name a class with methods to call."
        )
    if any("__init__" in vars(kind) for kind in found.__mro__[:-1]):
        raise ConfigError(
            "its __init__ would never run: the worker is made by its own.",
            where=f"{FLAG} {target}",
            fix="leave __init__ out, and set up what a method needs when it is first called.",
        )
    return found


def _names(extension: type) -> set[str]:
    return {name for name in dir(extension) if not (name.startswith("__") and name.endswith("__"))}


def _verify_apart(added: set[str], known: set[str], target: str, plugin: type[Worker]) -> None:
    """Raise ConfigError if the worker already has one of the names."""
    both = sorted(added & known)
    if both:
        raise ConfigError(
            f"{plugin.__name__} has {', '.join(both)} already, which would be hidden.",
            where=f"{FLAG} {target}",
            fix="rename what the class adds.",
        )


def worker_call(
    method: str | Callable[..., Any],
    timeout_s: float | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> WorkerCall:
    """Return a call as each rank will receive it. Raises: RequestError for bad arguments"""
    if timeout_s is not None and not timeout_s > 0:
        raise RequestError(
            f"{timeout_s:g} s are too short.", where="timeout", fix="give more than 0, or none."
        )
    name = method if isinstance(method, str) else function_name(method)
    call = WorkerCall(method=name, args=tuple(args), kwargs=dict(kwargs or {}), timeout_s=timeout_s)
    return msgspec.msgpack.decode(_encoded(call, "arguments", NOT_SENT), type=WorkerCall)


def function_name(function: Callable[..., Any]) -> str:
    """Return the "module:function" with which ranks import a function. Raises: RequestError"""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    is_plain = isinstance(function, FunctionType) and "<" not in name
    if not is_plain or module in (None, "__main__"):
        raise RequestError(
            f"{name or function} cannot be imported by the ranks, and nothing is pickled.",
            where="method",
            fix="put a function into a module, or a method into the class of " + FLAG + ".",
        )
    return f"{module}:{name}"


def apply_model(worker: Any, function: str) -> Any:
    """Return the result of a "module:function" applied to a worker's model."""
    return import_target(function)(worker.runner.model)


APPLY_MODEL = f"{__name__}:{apply_model.__name__}"


def call_worker(worker: Worker, call: WorkerCall, rank: int) -> Any:
    """Return a method's result in transferable form. Raises: RequestError naming the rank"""
    try:
        answer = _callable(worker, call.method)(*call.args, **call.kwargs)
        data = _encoded(answer, f"answer of {call.method}", NOT_RETURNED)
    except RequestError as error:
        what, status = f"rank {rank}: {error.what}", error.status
        raise RequestError(what, where=error.where, fix=error.fix, status=status) from error
    except Exception as error:
        logger.exception("%s failed on rank %d", call.method, rank)
        reason = error.what if isinstance(error, DovetailError) else str(error)
        what = f"rank {rank}: {call.method} raised {type(error).__name__}: {reason}"
        raise RequestError(what, status=FAILED) from error
    return msgspec.msgpack.decode(data)


def _callable(worker: Worker, method: str) -> Callable[..., Any]:
    """Return the function that a call names. Raises: RequestError if there is none"""
    if ":" in method:
        function = import_target(method)
        return lambda *args, **kwargs: function(worker, *args, **kwargs)
    names = callable_names(worker)
    if method not in names:
        known = ", ".join(sorted(names)) or "none yet; add some with " + FLAG
        raise RequestError(
            f'there is no method "{method}" to call.', where="method", fix=f"use one of: {known}."
        )
    found: Callable[..., Any] = getattr(worker, method)
    return found


def callable_names(worker: Worker) -> set[str]:
    """Return the methods callable by name: public ones that are not part of Worker itself."""
    kind = type(worker)
    names = set(dir(kind)) - set(dir(Worker))
    return {n for n in names if not n.startswith("_") and callable(getattr(kind, n))}


def _encoded(value: Any, what: str, fix: str) -> bytes:
    """Return a value in serialized form. Raises: RequestError"""
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise RequestError(f"the {what} cannot be sent: {reason}.", fix=fix) from error


class Called(msgspec.Struct, frozen=True, tag="called", omit_defaults=True):
    """A method's result or its error."""

    number: int
    result: Any = None
    fault: ErrorMessage | None = None


def answers_of(call: WorkerCall, called: Mapping[int, Called], num_ranks: int) -> list[Any]:
    """Return the ranks' results in rank order. Raises: RequestError for the first rank that failed,
    else for those that did not answer"""
    faults = {rank: one.fault for rank, one in sorted(called.items()) if one.fault is not None}
    if faults:
        first, *others = faults
        error = error_of(faults[first])
        assert isinstance(error, RequestError), "call_worker raises nothing else"
        also = f" (so did rank {', '.join(map(str, others))})" if others else ""
        what = f"{error.what.rstrip('.')}{also}."
        raise RequestError(what, where=error.where, fix=error.fix, status=error.status)
    silent = [rank for rank in range(num_ranks) if rank not in called]
    if silent:
        raise too_late(call, silent)
    return [called[rank].result for rank in range(num_ranks)]


def too_late(call: WorkerCall, ranks: Sequence[int]) -> RequestError:
    """Return the error for ranks that did not answer in time."""
    return RequestError(
        f"{call.method} did not end within {call.timeout_s:g} s on rank "
        f"{', '.join(map(str, ranks))}; it goes on there, and steps wait for it.",
        where="timeout",
        fix="give it more time.",
        status=TIMED_OUT,
    )
