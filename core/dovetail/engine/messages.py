"""The messages between API processes and the engine process, as tagged msgspec structs.

Encoded as msgpack; the tag identifies the message type. Generation is a stream (`AddRequests`, then
`Updates`). Every other request to an engine is a `Call`, answered by a `Return`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.media import PromptPart
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import Pooled, TokenLogprobs
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.stats import StepStats

Result = TypeVar("Result")


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation, checked and tokenized. `sampling.n` is 1: fan-out has already happened. With
    `pooling` nothing is generated.

    `request_id` is unique in the engine, independent of client ids. `adapter` is the name of a
    loaded adapter ("": none). `arrival_s` is the API process's monotonic clock, which all processes
    of one machine share; an engine on another machine can only compare such times. `parts` are the
    media in the prompt, in order of position; `prompt_ids` has placeholder tokens for them, which
    are not embedded. `kv_transfer` are the client's kv_transfer_params: the engine that the
    prompt's blocks come from, or that another engine will fetch them. `pin` is seconds
    and tokens: that many first tokens stay cached for that long afterwards, if there is room.
    `owner` is whom the request is from, and the weight of its share.
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
    pin: tuple[float, int] = (0.0, 0)
    owner: tuple[str, float] = ("", 1.0)


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """When a request first got a row, and when this update was made. Seconds of the engine's
    monotonic clock.

    `forward_s` and `execute_s` are sums over the request's steps so far: the model's time, and the
    time from submitting a step to its result. Both are 0 unless the EngineSpec enables them.
    """

    scheduled_s: float = 0.0
    updated_s: float = 0.0
    forward_s: float = 0.0
    execute_s: float = 0.0


class RequestUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The new output of one request in a step. `logprobs` pairs up with `token_ids`.

    `finish_reason` is "stop", "length", "abort" or "error"; an "error" has a text and an HTTP
    status. `prompt_logprobs` comes once, with the first token. `transfer` is sent at the end of a
    request that wants it: kv_transfer_params with which another engine continues.
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
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    timings: Timings = Timings()
    pooled: Pooled | None = None
    transfer: dict[str, Any] | None = None


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message of an engine process: where to meet its clients (see `ipc.socket_ends`).

    `addresses` is either one socket that the engine opens for all clients, or one descriptor of an
    open connection per client; the process that owns the engine is first.
    """

    spec: EngineSpec
    addresses: tuple[str, ...]


class ClientHello(msgspec.Struct, frozen=True, tag="hello"):
    """An API process introduces itself; the engine answers with Ready once it is ready."""


class AddRequests(msgspec.Struct, frozen=True, tag="add"):
    """New requests. The fan-out of one client request is sent together."""

    requests: tuple[EngineRequest, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End these requests; unknown ids are ignored."""

    request_ids: tuple[str, ...]


class Operation(msgspec.Struct, Generic[Result], frozen=True):
    """An operation that an engine can be called for; its fields are the arguments.

    `Result` is what a call of it returns. To add one, define a struct here, add it to
    `AnyOperation` (and its result to `AnyResult`), and perform it in a part of the engine.
    `is_vital`: an engine that cannot repeat it is not started again.
    """

    is_vital: ClassVar[bool] = True


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True, tag="engine_status"):
    """Health status. `num_steps` advances while there is work; `now_s` is the engine's monotonic
    clock. `failing` names the engine's threads that have failed within the last minute. Clients
    hear of a changed `condition` at once."""

    num_steps: int
    num_running: int
    num_waiting: int
    now_s: float = 0.0
    failing: tuple[str, ...] = ()
    condition: EngineCondition


class WorkerAnswers(msgspec.Struct, frozen=True, tag="worker_answers"):
    """The return values of a method of the workers, in rank order."""

    answers: list[Any]


class Ping(Operation[EngineStatus], frozen=True, tag="ping"):
    """Check that the engine is alive."""


class ResetPrefixCache(Operation[None], frozen=True, tag="reset_prefix_cache"):
    """Invalidate all cached prefixes."""


class Sleep(Operation[None], frozen=True, kw_only=True, tag="sleep"):
    """Release memory once no request is left. With `waits` running requests finish, else they are
    aborted. Returns when the engine sleeps."""

    level: int
    waits: bool = False


class WakeUp(Operation[None], frozen=True, tag="wake_up"):
    """Reallocate the memory of these tags (none: of all)."""

    tags: tuple[str, ...] = ()


class Pause(Operation[None], frozen=True, kw_only=True, tag="pause"):
    """Start no steps until Resume; new requests wait. Running ones are aborted, finish first, or
    "keep" their place. With `drops` no KV cache of before is used. Returns when no step runs."""

    mode: Literal["abort", "wait", "keep"]
    drops: bool = False


class Resume(Operation[None], frozen=True, tag="resume"):
    """Start steps again."""


class Leave(Operation[None], frozen=True, tag="leave"):
    """Have clients send new requests to engines other than `engine`, where those that come anyway
    wait. Returns when it has no others. Without `leaves` it takes them again."""

    engine: int
    leaves: bool = True


class CallWorkers(Operation[WorkerAnswers], frozen=True, tag="call_workers"):
    """Run a method on the workers of all ranks between two steps."""

    call: WorkerCall


class AdapterList(msgspec.Struct, frozen=True, tag="adapter_list"):
    """The adapters that requests may name, in loading order."""

    sources: tuple[AdapterSource, ...]


class LoadAdapter(Operation[None], frozen=True, kw_only=True, tag="load_adapter"):
    """Read an adapter on every rank and serve it from then on. With `replaces`, it may replace one
    of the same name, which running requests keep using."""

    is_vital: ClassVar[bool] = False
    source: AdapterSource
    replaces: bool = False


class UnloadAdapter(Operation[None], frozen=True, tag="unload_adapter"):
    """Stop accepting requests for the adapter of this name; running requests keep using it."""

    is_vital: ClassVar[bool] = False
    name: str


class ListAdapters(Operation[AdapterList], frozen=True, tag="list_adapters"):
    """List the adapters that are served."""


AnyOperation = (
    Ping
    | ResetPrefixCache
    | Sleep
    | WakeUp
    | Pause
    | Resume
    | Leave
    | CallWorkers
    | LoadAdapter
    | UnloadAdapter
    | ListAdapters
)


class EngineCondition(msgspec.Struct, frozen=True, kw_only=True, tag="condition"):
    """What operations have made of an engine: the parts that sleep, whether it is paused or leaves,
    and the path and version of new weights. `num_resets` counts how often cached prefixes were
    dropped. The operations `repeats` bring an engine that was started again to the same condition.
    """

    asleep: tuple[str, ...] = ()
    is_paused: bool = False
    is_leaving: bool = False
    weights: dict[str, Any] = {}
    num_resets: int = 0
    repeats: tuple[AnyOperation, ...] = ()


AnyResult = EngineStatus | WorkerAnswers | AdapterList | None


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A DovetailError in serialized form (`engine.faults`). `kind` is the name of its class."""

    kind: str
    what: str
    where: str | None = None
    fix: str | None = None
    code: str | None = None
    status: int | None = None
    retry_after_s: float | None = None


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Call an operation of the engine. `id` is unique among the client's calls."""

    id: int
    operation: AnyOperation


class Return(msgspec.Struct, frozen=True, tag="return", omit_defaults=True):
    """The reply to the client's call with this id: its result or its error."""

    id: int
    result: AnyResult = None
    fault: ErrorMessage | None = None


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """An API process disconnects; its running requests are aborted."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process now."""


ToEngine = ClientHello | AddRequests | Abort | Call | Goodbye | Shutdown


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    """A phase of the start-up has finished."""

    name: str
    duration_s: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine accepts requests. It has `num_blocks` KV blocks of `block_tokens` tokens, and is
    process `pid` on the host `machine`."""

    num_blocks: int
    block_tokens: int
    pid: int
    machine: str = ""


class StartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The start-up has failed."""

    fault: ErrorMessage


class Updates(msgspec.Struct, frozen=True, tag="updates", omit_defaults=True):
    """Updates for this client's requests, and the engine's statistics since the last message."""

    updates: tuple[RequestUpdate, ...] = ()
    stats: tuple[StepStats, ...] = ()


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """The whole engine has failed and ends."""

    reason: str


FromEngine = Phase | Ready | StartFailed | Updates | Return | EngineCondition | Dead
