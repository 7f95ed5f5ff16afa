"""An engine of the simulation with dovetail's own scheduler and block accounting.

Every step is planned by `ContinuousScheduler` over `KVCacheManager`; only its time is a model
(`engine_model.Hardware`). A step costs what planning it costs here, about 0.2 ms, so this is for
thousands of requests; `engine_model.Model` is for a million.
"""

from __future__ import annotations

from benchmarks.engine_model import BLOCK, Hardware, Job, Model
from dovetail.engine.kv import prefix_hash
from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.engine.request import Request
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import CacheSpec
from dovetail.interfaces.data.step import KVLayer, RowResult, StepPlan, StepResult
from dovetail.interfaces.scheduler import RequestState
from dovetail_plugins.schedulers.continuous import ContinuousOptions, ContinuousScheduler
from dovetail_plugins.scheduling_policies.fcfs import Fcfs

MODEL_TOKENS = 1 << 17
ID_MASK = (1 << 31) - 1


class ScheduledModel(Model):
    """Drives a scheduler; a router's token is a block here too."""

    def __init__(self, number: int, hardware: Hardware) -> None:
        super().__init__(number, hardware)
        self._scheduler = _scheduler(hardware)
        self._jobs: dict[str, Job] = {}
        self._plan_now: StepPlan | None = None
        self._serial = 0

    @property
    def num_running(self) -> int:
        """Return the requests that are in steps."""
        return self._scheduler.counts()[0]

    @property
    def num_waiting(self) -> int:
        """Return the requests in line."""
        return self._scheduler.counts()[1]

    def add(self, job: Job, now_s: float) -> float | None:
        """Queue a request; return when the next thing happens, None when that is known already."""
        self._serial += 1
        request = Request(
            request_id=str(self._serial),
            prompt_ids=[key & ID_MASK for key in job.blocks for _ in range(BLOCK)],
            sampling=SamplingParams(max_tokens=job.num_answer),
            seed=self._serial,
            max_model_tokens=MODEL_TOKENS,
        )
        self._jobs[request.request_id] = job
        self._scheduler.add(request)
        self.pending_tokens += len(job.blocks)
        return self._begin_step(now_s) if self._plan_now is None else None

    def go_on(self, now_s: float, first: list[float]) -> float | None:
        """End the step under way; return when the next one ends, None for never."""
        plan = self._plan_now
        assert plan is not None, "a step is under way"
        self.busy_s += self._step_s
        for request in self._scheduler.update(plan, _answer(plan)):
            if len(request.token_ids) == request.num_prompt_tokens + 1:
                self._note_first(request, now_s, first)
            if request.finish_reason is not None:
                del self._jobs[request.request_id]
        return self._begin_step(now_s)

    def _note_first(self, request: RequestState, now_s: float, first: list[float]) -> None:
        job = self._jobs[request.request_id]
        first.append(now_s - job.arrived_s)
        self.pending_tokens -= len(job.blocks)
        self.asked_blocks += len(job.blocks)
        self.hit_blocks += request.num_cached_tokens // BLOCK

    def _begin_step(self, now_s: float) -> float | None:
        plan = self._scheduler.plan()
        if not plan.rows:
            self._plan_now = None
            return None
        self._plan_now = plan
        drawing = sum(step.num_tokens == 1 for step in plan.rows)
        self._step_s = self._hardware.seconds(drawing, plan.num_tokens - drawing)
        self.version += 1
        return now_s + self._step_s


def _scheduler(hardware: Hardware) -> ContinuousScheduler:
    num_blocks = hardware.cache_tokens // BLOCK + 1
    schedule = ScheduleSpec(
        max_rows=hardware.max_rows,
        max_step_tokens=hardware.budget_tokens + hardware.max_rows,
        max_model_tokens=MODEL_TOKENS,
        uses_chunked_prefill=True,
        long_prefill_tokens=0,
        async_steps=False,
    )
    cache = CacheSpec(
        block_tokens=BLOCK,
        num_blocks=num_blocks,
        memory_bytes=None,
        memory_share=0.0,
        uses_prefix_cache=True,
        hash_algorithm=prefix_hash.DEFAULT,
    )
    layer = KVLayer(name="0", num_kv_heads=1, head_size=64, dtype="float32")
    layout = plan_layout([layer], block_tokens=BLOCK, num_blocks=num_blocks)
    manager = KVCacheManager(layout, cache, b"benchmark")
    return ContinuousScheduler(ContinuousOptions(), schedule, manager, Fcfs(None))


def _answer(plan: StepPlan) -> StepResult:
    rows = tuple(RowResult(row=r.row, token_ids=(5,) if r.samples else ()) for r in plan.rows)
    return StepResult(step_id=plan.step_id, rows=rows)
