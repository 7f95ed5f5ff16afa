"""Messages between an executor and its ranks, as tagged msgspec structs in msgpack.

Each rank has two connections. By the first come Orders, done one after the other by the thread that
makes the model's calls, and their Answers. The second is for what does not wait for steps:
constraints to load, and a rank's report of its end.
"""

from __future__ import annotations

import msgspec

from dovetail.engine.messages import ErrorMessage
from dovetail.engine.worker_calls import Called
from dovetail.interfaces.data.adapter_spec import AdapterFacts
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import Preparation, WorkerCall
from dovetail.observability.logging import LogSettings


class RankTask(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's task: `run` is its own. The ranks meet at `address`; if `is_open`, it is already
    open."""

    run: RunSpec
    worker: Selection
    address: str
    is_open: bool = False


class Orders(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a rank's process gets its orders: by the socket of this number, or, `is_shared`, by its
    own pipe in the memory of this number (`dovetail_kernels.byte_pipe`)."""

    descriptor: int
    is_shared: bool = False


class RankBoot(RankTask, frozen=True, kw_only=True):
    """The boot message of a rank's process. `log` says how to log (None: not at all)."""

    orders: Orders
    log: LogSettings | None


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Build the worker and join the other ranks."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Build the model and fill its weights."""


class GetKVLayers(msgspec.Struct, frozen=True, tag="get_kv_layers"):
    """Requests the cached data of the model's attention layers."""


class GetFreeBytes(msgspec.Struct, frozen=True, tag="get_free_bytes"):
    """Say how many bytes the KV cache may take."""


class Allocate(msgspec.Struct, frozen=True, tag="allocate"):
    """Create the KV cache and warm up."""

    layout: KVLayout


class RunStep(msgspec.Struct, frozen=True, tag="step"):
    """Run a step. The rank that answers for all sends the result; the others send nothing."""

    plan: StepPlan


class Drawn(msgspec.Struct, frozen=True, tag="drawn"):
    """Passes on the tokens that the last stage of a pipeline sampled. It has no answer."""

    result: StepResult


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """Give memory back."""

    level: int


class WakeUp(msgspec.Struct, frozen=True, tag="wake_up"):
    """Take memory again."""

    tags: tuple[str, ...]


class CallMethod(msgspec.Struct, frozen=True, tag="call_method"):
    """Call a method of the worker. `number` identifies the call: an answer may come too late."""

    number: int
    call: WorkerCall


Order = (
    Start
    | Load
    | GetKVLayers
    | GetFreeBytes
    | Allocate
    | RunStep
    | Drawn
    | Sleep
    | WakeUp
    | CallMethod
)


class OrderDone(msgspec.Struct, frozen=True, tag="done"):
    """An order has been carried out."""


class KVLayers(msgspec.Struct, frozen=True, tag="kv_layers"):
    """The cached data of the model's attention layers."""

    layers: tuple[CachedLayer, ...]


class FreeBytes(msgspec.Struct, frozen=True, tag="free_bytes"):
    """How many bytes the KV cache may take."""

    num_bytes: int


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """The result of a step."""

    result: StepResult


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An order was refused; the rank lives on."""

    fault: ErrorMessage


Answer = OrderDone | KVLayers | FreeBytes | Stepped | Failed | Called


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Load a constraint, during the steps."""

    number: int
    item: Preparation


class ItemPrepared(msgspec.Struct, frozen=True, tag="prepared", omit_defaults=True):
    """A constraint or an adapter is loaded, or cannot be. `facts` belong to an adapter."""

    number: int
    fault: ErrorMessage | None = None
    facts: AdapterFacts | None = None


class EndReport(msgspec.Struct, frozen=True, tag="end_report"):
    """Why a rank ends. `when_s` is on the monotonic clock, which a machine's processes share."""

    when_s: float
    reason: str


Aside = ItemPrepared | EndReport
