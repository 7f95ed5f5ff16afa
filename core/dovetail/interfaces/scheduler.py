"""Scheduler: decides in every step which request computes how many tokens.

There is no prefill and no decode phase: a request has tokens and a number of computed tokens, and
each step hands out a token budget until the two meet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.media import PromptPart
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.pooling_params import PoolingParams
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.schedule_spec import ScheduleSpec
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail.interfaces.step import RowResult, StepPlan, StepResult


class RequestState(Protocol):
    """A request as the engine keeps it and a scheduler moves it along.

    `num_tokens` counts prompt and drawn tokens; `num_inflight` the tokens that steps in flight
    will still draw, so the next position to compute may be one the host does not know yet.
    The scheduler sets `row`, `status`, `num_computed_tokens`, `num_inflight`, `num_preemptions`.
    `draft_ids` guess what follows the known tokens. The engine sets them, the scheduler takes as
    many of the first as it has room for when it plans the last known token, and empties them then
    and when it preempts. `num_wanted_drafts` of them are wanted of the worker, behind the token
    that the request draws next; `has_unlikely_drafts`: it made some and left all out (RowResult).
    `num_draft_tokens` and `num_accepted_tokens` count drafts whose result came, and those of them
    that came true; the scheduler adds to both.
    `block_hashes` and `prefix_keys` are the KV cache's: hashes of the full blocks known so far,
    and the (type, value) pairs beyond tokens that cached content depends on (salt, adapter).
    `adapter_slot` holds the request's adapter from before it is queued until it has ended.
    With `pooling` the request ends with the step that computes its last token. `needs_whole_prompt`
    says that what is told of it depends on every token's step, so no prefix is taken from the cache
    and nothing cached is kept when it is preempted. `parts` are what stands in the prompt beside
    tokens; `reach` says how far a step can go while some of them wait to be encoded.
    """

    request_id: str
    sampling: SamplingParams
    pooling: PoolingParams | None
    needs_whole_prompt: bool
    seed: int
    priority: int
    arrival_s: float
    status: str
    row: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_inflight: int
    num_cached_tokens: int
    num_preemptions: int
    adapter_slot: int
    draft_ids: tuple[int, ...]
    has_unlikely_drafts: bool
    num_wanted_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    token_ids: list[int]
    block_hashes: list[bytes]
    parts: tuple[PromptPart, ...]

    @property
    def prefix_keys(self) -> tuple[tuple[str, str], ...]: ...

    def parts_between(self, start: int, end: int) -> tuple[tuple[str, str], ...]: ...

    def reach(self, start: int, num_tokens: int) -> int:
        """Return how many of the tokens from `start` on the next plan can compute, and count what
        has to be encoded for them against that plan; 0 where the first of them has to wait."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def is_finished(self) -> bool: ...

    def append(self, result: RowResult) -> None:
        """Record drawn tokens and the worker's drafts of what follows; set the finish reason when a
        token ends the request."""

    def finish(self, reason: str, detail: str | None = None) -> None:
        """End the request: reason is "stop", "length", "abort" or "error"."""


class KVCache(Protocol):
    """The block accounting a scheduler draws on. Every call leaves the cache consistent.

    `num_blocks` counts the blocks that requests can own (the null block is not among them). Of the
    `num_groups` KV groups, `num_growing` take blocks as a request gets longer; the others have all
    that they need with its first block.
    """

    num_blocks: int
    num_groups: int
    num_growing: int

    @property
    def num_free_blocks(self) -> int: ...

    def blocks_for(self, num_tokens: int, step_tokens: int) -> int:
        """Return the most blocks a request of `num_tokens` tokens owns at any time when at most
        `step_tokens` of them are in steps that are not yet committed."""

    def find_prefix(self, request: RequestState) -> int:
        """Return how many leading tokens of the request are cached (whole blocks, at most
        num_tokens - 1; 0 for a request that needs its whole prompt). Changes nothing."""

    def allocate(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> tuple[tuple[int, ...], ...] | None:
        """Make room up to position `num_tokens`; return the new block ids per group, or None
        (and change nothing) when too few blocks are free. On first allocation `cached_tokens`
        takes the prefix found by find_prefix; its block ids come first in the answer."""

    def commit(self, request: RequestState, num_tokens: int) -> None:
        """Say that the first `num_tokens` tokens are computed and known: full blocks among them
        become findable by other requests."""

    def free(self, request: RequestState, *, forget: bool = False) -> None:
        """Free all blocks of the request, host blocks too; one that owns none is ignored. `forget`
        also removes them from the prefix index, shared ones too (their content is suspect)."""

    def swap_out(
        self, request: RequestState, num_tokens: int
    ) -> tuple[tuple[int, int], ...] | None:
        """Free the request's blocks and keep what its first `num_tokens` tokens have cached in host
        blocks: return the copies for StepPlan.swapped_out, or None (and change nothing) when too
        few host blocks are free or it is not worth it. The copies belong into the next plan that
        has rows."""

    def find_swapped(self, request: RequestState) -> int:
        """Return how many leading tokens the request's host blocks hold, at most num_tokens - 1;
        0 when it has none. Changes nothing."""

    def swap_in(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]] | None:
        """Make room up to position `num_tokens` for a request that has host blocks: return its
        block ids per group and the copies for the same plan's `swapped_in`, or None (and change
        nothing) when too few blocks are free. The prefix found by find_prefix, `cached_tokens`
        (less than find_swapped said), is taken from the cache and not copied. The host blocks may
        hold something else from the next plan on."""


class Scheduler(Plugin):
    """Plans steps and records their results.

    Invariants, checked by the conformance kit: every plan keeps `max_step_tokens` and `max_rows`;
    no block is used by two requests unless it is a shared full prefix block; each unfinished
    request is either waiting or running; while a request can run, a plan is not empty; a
    finished request owns no row and no block. `plan` may be called again before `update` of the
    previous plan when `spec.async_steps` is set, at most one plan ahead. With several stages of a
    pipeline (`spec.num_stages`) there may be `spec.plans_in_flight` plans without a result; a
    request whose token is not known yet is in none of those that follow.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "chunked_prefill": "splits a prompt over several steps when the budget is short",
        "preemption": "frees a running request's blocks and recomputes it later",
        "async_steps": "can plan a step before the previous result is known",
        "pipeline": "keeps the stages of a pipeline busy with plans of different requests",
        "priority": "honours the scheduling policy's order",
        "drafts": "plans a request's draft_ids for verification",
        "worker_drafts": "asks the worker for the drafts that a request wants, with room for them; "
        "while they are under way the request is in no further plan",
        "swap": "keeps the KV cache of preempted requests in host blocks",
    }

    @abstractmethod
    def __init__(
        self, options: Any, spec: ScheduleSpec, cache: KVCache, policy: SchedulingPolicy
    ) -> None:
        """Keep the limits, the block accounting and the policy. Mutates: cache, by later calls."""

    @abstractmethod
    def add(self, request: RequestState) -> None:
        """Queue a new request. Raises: RequestError when it can never fit."""

    @abstractmethod
    def plan(self) -> StepPlan:
        """Return the next step; `rows` is empty when nothing can run now. Such a plan may be
        dropped: it names no new and no freed rows.

        Mutates: requests (row, status, computed and in-flight counts) and the cache.
        """

    @abstractmethod
    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        """Record a result; return the requests that changed (got tokens, or ended).

        Results of requests that ended meanwhile are ignored. Ended requests have been freed.
        """

    @abstractmethod
    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> Sequence[RequestState]:
        """End these requests now, at whatever stage they are; unknown ids are ignored.

        Returns the requests ended. Their rows are freed in the next plan.
        """

    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Return (running, waiting)."""
