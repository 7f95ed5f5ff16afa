"""StatLogger: receives the engine's numbers. Times in seconds of one monotonic clock."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.sampling_params import SamplingParams


class TransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """What went through a KV connector since the last StepStats: requests whose blocks came, those
    whose blocks could not be had, tokens that they did not compute, bytes of blocks that came and
    that were given to be written (on each rank), and the seconds that loads took, all together."""

    connector: str
    loads: int = 0
    failures: int = 0
    loaded_tokens: int = 0
    loaded_bytes: int = 0
    saved_bytes: int = 0
    load_s: float = 0.0


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """An engine after one step. Counts since its previous StepStats unless named `num_`; `engine`
    is its number, where several serve one model.

    `prompt_tokens` and `generated_tokens` are what the engine computed, once per completion; what
    clients count is in TokenStats. `finished` counts completions, `faults` those of them that ended
    with an error. `drafts` counts verified runs of guesses, `draft_tokens` the guesses in them, and
    `accepted_tokens` those that came true; `drafted_at[i]` and `accepted_at[i]` count those at
    place i of their drafts. `num_swapped` of the waiting requests have what they cached in host
    blocks, of which `host_kv_usage` is the share in use; `swaps` counts preemptions that put it
    there and `swapped_in_tokens` the tokens that were copied back and not computed again.
    `sleep_level` is 0 while the engine is awake. `device_s` is what the model took where it runs;
    `exposed_s` is how long it stood still before that for the host to bring the step, `hidden_s`
    the rest of the host's time, spent while it ran. (Where the host itself runs the model and does
    not plan ahead, the model's time is in both.) `running_adapters` are the names of the adapters
    that requests have a slot of, `waiting_adapters` of those that requests wait for a slot of;
    there are `max_adapters` slots (0: no adapters are served). `divided_steps` counts steps that
    the model ran on in two half batches. `transfer` is what went through the KV connector (None:
    there is none).
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
    """Tokens that reached requests of this process, as clients count them.

    `prompt_tokens` comes once per request, with its first token, however many completions it has;
    `generated_tokens` holds none that came after a stop string.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    engine: int = 0


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP request behind a request: its path, its id, and its W3C trace headers where it has
    them."""

    request_id: str = ""
    path: str = ""
    traceparent: str = ""
    tracestate: str = ""


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When things happened to a request; 0 is never.

    `arrival_s` and `ended_s` are read in the API process, the others in the engine: `scheduled_s`
    when the first completion took a row, `first_token_s` and `last_token_s` when tokens were known.
    """

    arrival_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    ended_s: float = 0.0


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. Durations: `queue_s` arrival to first step, `prefill_s` first step
    to first token, `decode_s` first to last token; `ttft_s` and `e2e_s` from arrival.

    `finish_reason` is that of the first completion, `finish_reasons` has one per completion that
    has ended; `error` says why for "error". `generated_tokens` adds the completions up,
    `longest_tokens` is the longest; `sampling` is as the request asked. `forward_s` and `execute_s`
    are the summed times of the model and of the executor in the steps that had this request in
    them, 0 unless asked for.
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


class StatLogger(Plugin):
    """Lives in the API process; every call but `close` must return quickly, and none may raise."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "offline": "also receives the requests of an engine without a server",
    }

    @abstractmethod
    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        """Prepare to receive numbers of one served model."""

    def expect(self, engines: Sequence[int]) -> None:
        """Prepare for the numbers of these engines; called once, before any come."""

    @abstractmethod
    def step(self, stats: StepStats) -> None:
        """Record an engine's state after a step."""

    @abstractmethod
    def request(self, stats: RequestStats) -> None:
        """Record a finished request."""

    def tokens(self, stats: TokenStats) -> None:
        """Record tokens as they reach their requests."""

    def flush(self) -> None:
        """Write what is held back; called on shutdown and every few seconds."""

    def close(self) -> None:
        """Write what is held back and let go of everything, within a few seconds. The last call;
        it comes from another thread than the others."""
