"""Platform: a device type, queried in the parent process before anything is resolved, without
torch.

It says whether its device is present, and gives an engine's defaults and limits on it. The worker
that it names does the computing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.plugin import Plugin

AUTO_DTYPE = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformDefaults:
    """The defaults if no flag says otherwise. Counts of tokens and requests.

    Plugins are named as on the command line: a name, name@distribution or module:Class. None leaves
    the choice to dovetail; for attention that is "auto". Steps of up to `recorded_rows` requests
    are recorded and replayed, one recording per number of requests; None: for a few sizes, like
    graphs. `async_steps`: the next step is planned while the device runs one.
    """

    worker: str
    step_tokens: int = 2048
    rows: int = 256
    block_tokens: int = 16
    kv_dtype: str | None = None
    scheduler: str | None = None
    executor: str | None = None
    kv_policy: str | None = None
    attention: str | None = None
    recorded_rows: int | None = None
    async_steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformLimits:
    """The limits of the device. None and () allow anything.

    `dtypes` are the allowed weight types, `kv_dtypes` the allowed KV cache types, `quantizations`
    names of methods.
    """

    step_tokens: int | None = None
    rows: int | None = None
    block_tokens: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()


class Platform(Plugin):
    """A type of device. `unavailable_reason()` says why there is none here.

    "auto" chooses the available one with the highest `auto_rank`. `device_type` is how other
    plugins refer to the device (AttentionQuery.device, Worker.why_not, RunSpec); `torch_type` is
    torch's name for it, if different. `ops` maps an op of dovetail_kernels to the
    "module:attribute" of a `dovetail_kernels.op.Implementation`, which layers on this device prefer
    to dovetail's own.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "host_memory": "computes on main memory: the KV cache is sized by what is free there, and "
        "there is nowhere to swap or offload to",
        "host_cores": "computes on this machine's processors: a worker gets a thread for each core",
    }

    device_type: ClassVar[str] = ""
    torch_type: ClassVar[str] = ""
    ops: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def defaults(self) -> PlatformDefaults:
        """Return the defaults of an engine on this device."""

    def limits(self) -> PlatformLimits:
        """Return the limits of the device. The default: none."""
        return PlatformLimits()

    def dtypes(self, requested: str, stored: str | None) -> tuple[str, str]:
        """Return the types (of activations, of matrices), by torch's names.

        `requested` is "auto" or such a name, `stored` the checkpoint's type if it states one.
        The default: both as requested, else as stored, else bfloat16.
        """
        chosen = requested if requested != AUTO_DTYPE else stored or "bfloat16"
        return chosen, chosen

    def free_bytes(self) -> int | None:
        """Return the device's free memory in bytes; None if only torch can tell."""
        return None

    def engine_variables(self, place: int, count: int, num_ranks: int) -> Mapping[str, str]:
        """Return the environment variables that give an engine on this machine a device for each of
        its ranks. `place` is the engine's index among `count` engines, from 0. The default: none,
        engines share the devices. Raises: ConfigError when there are too few devices."""
        return {}

    def check(self, spec: EngineSpec) -> None:
        """Raise ConfigError for an engine that this device cannot run. The default: it can run
        all."""
