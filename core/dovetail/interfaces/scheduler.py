"""Scheduler: decides in every step which request computes how many tokens.

There are no prefill and decode phases: a request has tokens and a number of computed tokens, and
each step spends a token budget to bring the two closer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from dovetail.errors import RequestError
from dovetail.interfaces.data.media import PromptPart
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.step import RowResult, StepPlan, StepResult
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.scheduling_policy import SchedulingPolicy


class RequestState(Protocol):
    """A request, stored by the engine and advanced by the scheduler.

    `num_tokens` counts prompt and drawn tokens. `num_inflight` counts the tokens that steps in
    flight will still draw, so the next position to compute may be unknown to the host. The
    scheduler sets `row`, `status`, `num_computed_tokens`, `num_inflight`, `num_preemptions`.
    `draft_ids` are guesses of what follows the known tokens. The engine sets them. When the
    scheduler plans the last known token, it takes as many of the first ones as fit and clears the
    field; it also clears it when it preempts. `num_wanted_drafts` is how many drafts the worker
    should make after the token that the request draws next. `has_unlikely_drafts`: it made some and
    dropped all (RowResult). `num_draft_tokens` and `num_accepted_tokens` count drafts with a
    result, and the accepted ones; the scheduler adds to both. The KV cache owns `block_hashes` and
    `prefix_keys`: hashes of the full blocks known so far, and the (type, value) pairs besides
    tokens that cached content depends on (salt, adapter). `adapter_slot` holds the request's
    adapter from before it is queued until it has ended. With `pooling` the request ends with the
    step that computes its last token. `needs_whole_prompt`: the result depends on every token's
    step, so it uses no cached prefix, and nothing cached is saved when it is preempted. `parts` are
    the prompt's media; `reach` says how far a step can go while some of them wait to be encoded.
    `owner` is whom it is from, and the weight of that owner's share.
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
    owner: tuple[str, float]

    @property
    def prefix_keys(self) -> tuple[tuple[str, str], ...]: ...

    def parts_between(self, start: int, end: int) -> tuple[tuple[str, str], ...]: ...

    def reach(self, start: int, num_tokens: int) -> int:
        """Return how many of the tokens from `start` on the next plan can compute, and charge their
        pending encodings to that plan; 0 if the first of them has to wait."""

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
    """The block accounting that a scheduler uses. Every call leaves the cache consistent.

    `num_blocks` counts the blocks that requests can own (without the null block). Of the
    `num_groups` KV groups, `num_growing` need more blocks as a request gets longer; the others get
    all their blocks with the first one.
    """

    num_blocks: int
    num_groups: int
    num_growing: int

    @property
    def num_free_blocks(self) -> int: ...

    def blocks_for(self, num_tokens: int, step_tokens: int) -> int:
        """Return the maximum number of blocks that a request of `num_tokens` tokens owns at any
        time, if at most `step_tokens` of them are in steps that are not yet committed."""

    def find_prefix(self, request: RequestState) -> int:
        """Return how many leading tokens of the request are cached (whole blocks, at most
        num_tokens - 1; 0 for a request that needs its whole prompt). Changes nothing."""

    def allocate(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> tuple[tuple[int, ...], ...] | None:
        """Allocate blocks up to position `num_tokens`; return the new block ids per group, or None
        (and change nothing) when too few blocks are free. On first allocation `cached_tokens` takes
        the prefix found by find_prefix; its block ids come first in the result."""

    def commit(self, request: RequestState, num_tokens: int) -> None:
        """Mark the first `num_tokens` tokens as computed and known: other requests can find full
        blocks among them from now on."""

    def free(self, request: RequestState, *, forget: bool = False) -> None:
        """Free all blocks of the request, host blocks too; one that owns none is ignored. `forget`
        also removes them from the prefix index, even shared ones, because their content is
        suspect."""

    def swap_out(
        self, request: RequestState, num_tokens: int
    ) -> tuple[tuple[int, int], ...] | None:
        """Free the request's blocks and save the KV of its first `num_tokens` tokens in host
        blocks. Return the copies for StepPlan.swapped_out, or None (and change nothing) when too
        few host blocks are free or it is not worth it. The copies belong in the next plan that has
        rows."""

    def find_swapped(self, request: RequestState) -> int:
        """Return how many leading tokens the request's host blocks hold, at most num_tokens - 1; 0
        if it has none. Changes nothing."""

    def swap_in(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]] | None:
        """Allocate blocks up to position `num_tokens` for a request with host blocks. Return its
        block ids per group and the copies for the same plan's `swapped_in`, or None (and change
        nothing) when too few blocks are free. The prefix found by find_prefix, `cached_tokens`
        (less than find_swapped returned), comes from the cache and is not copied. The host blocks
        may be overwritten from the next plan on."""


class Scheduler(Plugin):
    """Plans steps and records their results.

    Invariants, checked by the conformance kit: every plan respects `max_step_tokens` and
    `max_rows`; no block is used by two requests unless it is a shared full prefix block; each
    unfinished request is either waiting or running; while a request can run, a plan is not empty; a
    finished request owns no row and no block. With `spec.async_steps`, `plan` may be called again
    before `update` of the previous plan, at most one plan ahead. With several pipeline stages
    (`spec.num_stages`), up to `spec.plans_in_flight` plans may lack a result; a request whose token
    is not known yet is in none of the later ones.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "chunked_prefill": "splits a prompt over several steps when the budget is short",
        "preemption": "frees a running request's blocks and recomputes it later",
        "async_steps": "can plan a step before the previous result is known",
        "pipeline": "keeps the stages of a pipeline busy with plans of different requests",
        "priority": "honours the scheduling policy's order, and asks again for keys that move",
        "drafts": "plans a request's draft_ids for verification",
        "worker_drafts": "asks the worker for the drafts that a request wants, with room for them; "
        "while they are under way the request is in no further plan",
        "swap": "keeps the KV cache of preempted requests in host blocks",
    }

    @abstractmethod
    def __init__(
        self, options: Any, spec: ScheduleSpec, cache: KVCache, policy: SchedulingPolicy
    ) -> None:
        """Store the limits, the block accounting and the policy. Mutates: cache, by later calls."""

    @abstractmethod
    def add(self, request: RequestState) -> None:
        """Queue a new request. Raises: RequestError when it can never fit."""

    @abstractmethod
    def plan(self) -> StepPlan:
        """Return the next step; `rows` is empty when nothing can run now. Such a plan may be
        dropped: it contains no new and no freed rows.

        Mutates: requests (row, status, computed and in-flight counts) and the cache.
        """

    @abstractmethod
    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        """Record a result; return the requests that changed (got tokens, or ended).

        Results of requests that have ended meanwhile are ignored. Ended requests are freed.
        """

    @abstractmethod
    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> Sequence[RequestState]:
        """End these requests now, in whatever state they are; unknown ids are ignored.

        Returns the requests ended. Their rows are freed in the next plan.
        """

    def preempt_all(self) -> None:
        """Take the blocks of all requests, host blocks too, so that they are computed again. The
        default: this scheduler has no "preemption". Raises: RequestError"""
        raise RequestError("the scheduler does not preempt requests.", status=409)

    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Return (running, waiting)."""
