"""What crosses between API processes and the engine process, as tagged msgspec structs.

Encoded as msgpack; the tag says which message it is. Generation is a stream (`AddRequests`, then
`Updates`); whatever else is asked of an engine is a `Call`, ended by a `Return`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from dovetail.interfaces.adapter_spec import AdapterSource
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.media import PromptPart
from dovetail.interfaces.pooling_params import PoolingParams
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import EngineSpec
from dovetail.interfaces.stats import StepStats
from dovetail.interfaces.step import Pooled, TokenLogprobs

Result = TypeVar("Result")


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation, checked and tokenized. `sampling.n` is 1: fan-out has happened. With
    `pooling` nothing is generated.

    `request_id` is unique in the engine, whatever ids clients chose; `adapter` names one that the
    engine has loaded ("": none). `arrival_s` is read from
    the API process's monotonic clock, which all processes of one machine share: an engine elsewhere
    can only compare such times. `parts` are what stands in the prompt beside tokens, in the order
    of their positions, where `prompt_ids` has tokens that are not looked up. `kv_transfer` are the
    client's kv_transfer_params: from which engine the prompt's blocks come, or that another will
    want them. The prompt's blocks stay cached for `pin_s` seconds after it, if there is room.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    priority: int = 0
    arrival_s: float = 0.0
    cache_salt: str = ""
    pooling: PoolingParams | None = None
    adapter: str = ""
    parts: tuple[PromptPart, ...] = ()
    kv_transfer: dict[str, Any] | None = None
    pin_s: float = 0.0


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """When a request first took a row, and when this update was made. Seconds of the engine's
    monotonic clock.

    `forward_s` and `execute_s` add up, over the request's steps so far, the model's time and the
    time from handing a step over to its result; 0 unless the EngineSpec asks for them.
    """

    scheduled_s: float = 0.0
    updated_s: float = 0.0
    forward_s: float = 0.0
    execute_s: float = 0.0


class RequestUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The news of one request in a step. `logprobs` pairs up with `token_ids`.

    `finish_reason` is "stop", "length", "abort" or "error"; with "error" come the text, and the
    HTTP status it should become. `prompt_logprobs` comes once, with the first token. `transfer` are
    the kv_transfer_params by which another engine goes on, with the end of a request that asked.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    error_code: str | None = None
    error_status: int = 500
    num_cached_tokens: int = 0
    timings: Timings = Timings()
    pooled: Pooled | None = None
    transfer: dict[str, Any] | None = None


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message of an engine process: where it meets its clients (see `ipc.socket_ends`).

    One address is that of a socket to be opened for all of them; descriptors of open connections
    are one for each, that of the process which owns the engine first.
    """

    spec: EngineSpec
    addresses: tuple[str, ...]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """An API process introduces itself; the engine answers with Ready once it is."""


class AddRequests(msgspec.Struct, frozen=True, tag="add"):
    """New requests: the fan-out of one client's request travels together."""

    requests: tuple[EngineRequest, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End these requests; unknown ids are ignored."""

    request_ids: tuple[str, ...]


class Operation(msgspec.Struct, Generic[Result], frozen=True):
    """An operation that an engine can be called for; its fields are the arguments.

    `Result` is what a call of it returns. A new one is a struct here, named in `AnyOperation` (and
    its result in `AnyResult`), and an arm of `EngineLoop._perform`.
    """


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True, tag="engine_status"):
    """A sign of life. `num_steps` moves while there is work; `now_s` is what the engine's monotonic
    clock says; `failing` are those of its threads that have failed within the last minute."""

    num_steps: int
    num_running: int
    num_waiting: int
    now_s: float = 0.0
    failing: tuple[str, ...] = ()


class SleepStatus(msgspec.Struct, frozen=True, tag="sleep_status"):
    """Which parts of the engine sleep: none while it is awake."""

    asleep: tuple[str, ...] = ()


class WorkerAnswers(msgspec.Struct, frozen=True, tag="worker_answers"):
    """What a method of the workers has returned, in the order of the ranks."""

    answers: list[Any]


class Ping(Operation[EngineStatus], frozen=True, tag="ping"):
    """Give a sign of life."""


class ResetPrefixCache(Operation[None], frozen=True, tag="reset_prefix_cache"):
    """From now on find no prefix that was cached before."""


class Sleep(Operation[None], frozen=True, kw_only=True, tag="sleep"):
    """Release memory once no request is left: `waits` lets those under way finish, else they end
    now. Returns when the engine sleeps."""

    level: int
    waits: bool = False


class WakeUp(Operation[None], frozen=True, tag="wake_up"):
    """Take the memory of these tags again (none: of all)."""

    tags: tuple[str, ...] = ()


class GetSleepStatus(Operation[SleepStatus], frozen=True, tag="get_sleep_status"):
    """Ask for the sleep status."""


class CallWorkers(Operation[WorkerAnswers], frozen=True, tag="call_workers"):
    """Have the workers of all ranks run a method between two steps."""

    call: WorkerCall


class AdapterList(msgspec.Struct, frozen=True, tag="adapter_list"):
    """The adapters that requests may ask for, in the order in which they were loaded."""

    sources: tuple[AdapterSource, ...]


class LoadAdapter(Operation[None], frozen=True, kw_only=True, tag="load_adapter"):
    """Read an adapter on every rank and serve it from then on. `replaces`: one of the same name
    may be there; requests under way keep it."""

    source: AdapterSource
    replaces: bool = False


class UnloadAdapter(Operation[None], frozen=True, tag="unload_adapter"):
    """Take no more requests for the adapter of this name; those under way keep it."""

    name: str


class ListAdapters(Operation[AdapterList], frozen=True, tag="list_adapters"):
    """Ask which adapters are served."""


AnyOperation = (
    Ping
    | ResetPrefixCache
    | Sleep
    | WakeUp
    | GetSleepStatus
    | CallWorkers
    | LoadAdapter
    | UnloadAdapter
    | ListAdapters
)
AnyResult = EngineStatus | SleepStatus | WorkerAnswers | AdapterList | None


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A DovetailError as it travels (`engine.faults`). `kind` is the name of its class."""

    kind: str
    what: str
    where: str | None = None
    fix: str | None = None
    code: str | None = None
    status: int | None = None
    retry_after_s: float | None = None


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Ask the engine to do something. `id` is unique among the client's calls."""

    id: int
    operation: AnyOperation


class Return(msgspec.Struct, frozen=True, tag="return", omit_defaults=True):
    """The end of the client's call of this id: its result, or why it was not done."""

    id: int
    result: AnyResult = None
    fault: Fault | None = None


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """An API process leaves; what it still has running is aborted."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process now."""


ToEngine = Hello | AddRequests | Abort | Call | Goodbye | Shutdown


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    """A part of the start-up is done."""

    name: str
    duration_s: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine takes requests. `num_blocks` KV blocks of `block_tokens` tokens; it is process
    `pid` on the host `machine`."""

    num_blocks: int
    block_tokens: int
    pid: int
    machine: str = ""


class StartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Start-up ended with an error."""

    fault: Fault


class Updates(msgspec.Struct, frozen=True, tag="updates", omit_defaults=True):
    """News of this client's requests, and the engine's numbers since the last message to it."""

    updates: tuple[RequestUpdate, ...] = ()
    stats: tuple[StepStats, ...] = ()


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """The engine ends because of a fault of the whole."""

    reason: str


FromEngine = Phase | Ready | StartFailed | Updates | Return | SleepStatus | Dead
