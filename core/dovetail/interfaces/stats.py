"""StatLogger: receives the engine's numbers. Times in seconds of one monotonic clock."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.plugin import Plugin


class TransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """KV connector transfers since the last StepStats: requests whose blocks were loaded, requests
    whose load failed, tokens that need not be computed, bytes loaded, bytes passed on for writing
    (on each rank), and the total seconds of the loads."""

    connector: str
    loads: int = 0
    failures: int = 0
    loaded_tokens: int = 0
    loaded_bytes: int = 0
    saved_bytes: int = 0
    load_s: float = 0.0


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's state after one step. Counts since its previous StepStats, except fields named
    `num_`; `engine` is its number, if several serve one model.

    `prompt_tokens` and `generated_tokens` are what the engine computed, once per completion;
    TokenStats has what clients count. `finished` counts completions, `faults` the ones that ended
    with an error. `drafts` counts verified drafts, `draft_tokens` their tokens, and
    `accepted_tokens` the accepted ones; `drafted_at[i]` and `accepted_at[i]` count those at place i
    of their drafts. `num_swapped` waiting requests have their cache in host blocks; `host_kv_usage`
    is the share of these in use. `swaps` counts preemptions that swapped out, and
    `swapped_in_tokens` the tokens that were copied back instead of computed again. `sleep_level` is
    0 while the engine is awake. `device_s` is the model's time on its device. `exposed_s` is how
    long the device was idle before that, waiting for the host; `hidden_s` is the rest of the host's
    time, while the device ran. (If the host itself runs the model and does not plan ahead, the
    model's time is in both.) `running_adapters` are the names of the adapters whose slots requests
    use, `waiting_adapters` of the adapters for which requests wait to get a slot; there are
    `max_adapters` slots (0: no adapters are served). `divided_steps` counts steps that ran in two
    half batches. `transfer` are the KV connector's transfers (None: there is none).
    """

    num_running: int
    num_waiting: int
    kv_usage: float
    num_swapped: int = 0
    host_kv_usage: float = 0.0
    sleep_level: int = 0
    step_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    preemptions: int = 0
    swaps: int = 0
    swapped_in_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    faults: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    forward_s: float = 0.0
    step_s: float = 0.0
    device_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()
    max_adapters: int = 0
    divided_steps: int = 0
    engine: int = 0
    transfer: TransferStats | None = None


class TokenStats(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens delivered to requests of this process, as clients count them.

    `prompt_tokens` is counted once per request, with its first token, however many completions it
    has; `generated_tokens` excludes tokens after a stop string.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    engine: int = 0


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP request that an engine request belongs to: its path, its id, and its W3C trace
    headers if it has them. `owner` and `weight` are whom the gate took it to be from ("":
    anybody)."""

    request_id: str = ""
    path: str = ""
    traceparent: str = ""
    tracestate: str = ""
    owner: str = ""
    weight: float = 1.0


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Timestamps of a request; 0 is never.

    `arrival_s` and `ended_s` are read in the API process, the others in the engine: `scheduled_s`
    when the first completion got a row, `first_token_s` and `last_token_s` when tokens were known.
    """

    arrival_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    ended_s: float = 0.0


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. Durations: `queue_s` arrival to first step, `prefill_s` first step to
    first token, `decode_s` first to last token; `ttft_s` and `e2e_s` from arrival.

    `finish_reason` is that of the first completion, `finish_reasons` has one per ended completion;
    `error` says why for "error". `generated_tokens` is the sum over completions, `longest_tokens`
    the maximum; `sampling` is as requested. `forward_s` and `execute_s` are the total times of the
    model and of the executor in the steps with this request, 0 unless requested. `cache_key` (its
    cache salt, its adapter) says with whom it shares cached prefixes; None: with nobody.
    """

    request_id: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    max_tokens: int
    n: int
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float
    e2e_s: float
    inter_token_s: tuple[float, ...] = ()
    longest_tokens: int = 0
    finish_reasons: tuple[str, ...] = ()
    error: str = ""
    sampling: SamplingParams = SamplingParams()
    times: RequestTimes = RequestTimes()
    forward_s: float = 0.0
    execute_s: float = 0.0
    caller: Caller | None = None
    engine: int = 0
    prompt_ids: tuple[int, ...] = ()
    cache_key: tuple[str, str] | None = None


class StatLogger(Plugin):
    """Lives in the API process. Every call except `close` must return quickly, and none may
    raise."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "offline": "also receives the requests of an engine without a server",
    }

    @abstractmethod
    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        """Prepare to receive the statistics of one served model."""

    def expect(self, engines: Sequence[int]) -> None:
        """Prepare for the statistics of these engines; called once, before any arrive."""

    @abstractmethod
    def step(self, stats: StepStats) -> None:
        """Record an engine's state after a step."""

    @abstractmethod
    def request(self, stats: RequestStats) -> None:
        """Record a finished request."""

    def tokens(self, stats: TokenStats) -> None:
        """Record tokens when they reach their requests."""

    def flush(self) -> None:
        """Write what is buffered; called on shutdown and every few seconds."""

    def close(self) -> None:
        """Write what is buffered and release everything, within a few seconds. The last call; it
        comes from another thread than the others."""
