"""What crosses between API processes and the engine process, as tagged msgspec structs.

Encoded as msgpack; the tag says which message it is.
"""

from __future__ import annotations

import msgspec

from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import EngineSpec
from dovetail.interfaces.stats import StepStats
from dovetail.interfaces.step import TokenLogprobs


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation, checked and tokenized. `sampling.n` is 1: fan-out has happened.

    `request_id` is unique in the engine, whatever ids clients chose. `arrival_s` is read from
    the monotonic clock, which all processes of one machine share.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    priority: int = 0
    arrival_s: float = 0.0
    cache_salt: str = ""


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """When a request first took a row, and when this update was made. Monotonic seconds.

    `forward_s` and `execute_s` add up, over the request's steps so far, the model's time and the
    time from handing a step over to its result; 0 unless the EngineSpec asks for them.
    """

    scheduled_s: float = 0.0
    updated_s: float = 0.0
    forward_s: float = 0.0
    execute_s: float = 0.0


class RequestUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one request gained in a step. `logprobs` pairs up with `token_ids`.

    `finish_reason` is "stop", "length", "abort" or "error"; with "error" come the text, and the
    HTTP status it should become. `prompt_logprobs` comes once, with the first token.
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


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message of an engine process."""

    spec: EngineSpec
    address: str


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """An API process introduces itself; the engine answers with Ready once it is."""


class AddRequests(msgspec.Struct, frozen=True, tag="add"):
    """New requests: the fan-out of one client's request travels together."""

    requests: tuple[EngineRequest, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End these requests; unknown ids are ignored."""

    request_ids: tuple[str, ...]


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Ask for a sign of life."""


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset"):
    """Ask that no cached prefix be used again; answered with PrefixCacheReset."""


class Sleep(msgspec.Struct, frozen=True, kw_only=True, tag="sleep"):
    """Ask the engine to release its memory once its requests have ended: at their own pace if it
    `waits`, else now. Answered, as WakeUp and AskRest are, with RestState."""

    ask_id: int
    level: int
    waits: bool = False


class WakeUp(msgspec.Struct, frozen=True, kw_only=True, tag="wake_up"):
    """Ask the engine to take the memory of these tags again (none: of all)."""

    ask_id: int
    tags: tuple[str, ...] = ()


class AskRest(msgspec.Struct, frozen=True, kw_only=True, tag="ask_rest"):
    """Ask whether the engine sleeps."""

    ask_id: int


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """An API process leaves; what it still has running is aborted."""


class ClientGone(msgspec.Struct, frozen=True, tag="gone"):
    """The parent says that another API process has died."""

    name: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process now."""


ToEngine = (
    Hello
    | AddRequests
    | Abort
    | Ping
    | ResetPrefixCache
    | Sleep
    | WakeUp
    | AskRest
    | Goodbye
    | ClientGone
    | Shutdown
)


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    """A part of the start-up is done."""

    name: str
    duration_s: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine takes requests. `num_blocks` KV blocks of `block_tokens` tokens."""

    num_blocks: int
    block_tokens: int
    pid: int


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Start-up ended with a DovetailError (`kind` is its class name), or a fault (`kind` empty)."""

    kind: str
    what: str
    where: str | None = None
    fix: str | None = None


class Updates(msgspec.Struct, frozen=True, tag="updates", omit_defaults=True):
    """News of this client's requests, and the engine's numbers since the last message to it."""

    updates: tuple[RequestUpdate, ...] = ()
    stats: tuple[StepStats, ...] = ()


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    """A sign of life. `num_steps` moves while there is work."""

    num_steps: int
    num_running: int
    num_waiting: int


class PrefixCacheReset(msgspec.Struct, frozen=True, tag="reset"):
    """From now on no prefix is found that was cached before."""


class RestState(msgspec.Struct, frozen=True, kw_only=True, tag="rest", omit_defaults=True):
    """What of the engine sleeps: nothing while it is awake. Every client is informed of changes.

    `ask_id` is the question that this answers (0: none), `fault` why what it asked was not done.
    """

    asleep: tuple[str, ...] = ()
    ask_id: int = 0
    fault: str | None = None
    where: str | None = None
    fix: str | None = None
    status: int = 400


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """The engine ends because of a fault of the whole."""

    reason: str


FromEngine = Phase | Ready | StartFailed | Updates | Pong | PrefixCacheReset | RestState | Dead
