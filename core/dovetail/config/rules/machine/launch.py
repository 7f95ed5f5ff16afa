"""Launch: the variables that a launcher such as torchrun sets for each process that it starts.

Source: PyTorch's documentation of torchrun, "Environment Variables".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import ConfigError

FLAG = "--distributed-executor-backend"
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
AGENT_STORE, RESTARTS, RUN_ID = (
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
)
MAX_PORT = 65535
SEED_BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """This process within a launch. All ranks meet at `host` and `port`, where the launcher has
    opened a store or else the first rank opens one."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    has_store: bool
    attempt: str
    run_id: str

    @property
    def is_one_machine(self) -> bool:
        """Return whether all ranks run on this machine, as far as the launcher knows."""
        return self.local_size == self.size

    @property
    def seed(self) -> int:
        """Return a number that is the same on every rank, and differs between launches with another
        port or id."""
        named = f"{self.host} {self.port} {self.attempt} {self.run_id}"
        digest = hashlib.sha256(named.encode()).digest()
        return int.from_bytes(digest[:8]) >> (64 - SEED_BITS)


def launch_of(variables: Mapping[str, str] = os.environ) -> Launch:
    """Return the launcher's settings. Raises: ConfigError for a missing or wrong variable"""
    rank, size, local_rank, local_size = (_number(variables, name) for name in NUMBERS)
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        numbers = ", ".join(f"{name}={variables[name]}" for name in NUMBERS)
        raise ConfigError(
            f"the launcher's numbers contradict one another: {numbers}.",
            where=FLAG,
            fix="let torchrun set them.",
        )
    host, port = variables.get(ADDRESS, ""), _number(variables, PORT)
    if not host or not 0 < port <= MAX_PORT:
        raise _missing(PORT if host else ADDRESS)
    return Launch(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        host=host,
        port=port,
        has_store=variables.get(AGENT_STORE) == str(True),
        attempt=variables.get(RESTARTS, "0"),
        run_id=variables.get(RUN_ID, ""),
    )


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name)
    if text is None:
        raise _missing(name)
    try:
        return int(text)
    except ValueError as error:
        what = f"the variable {name} is {text!r}, not a whole number."
        raise ConfigError(what, where=FLAG, fix="let torchrun set it.") from error


def _missing(name: str) -> ConfigError:
    return ConfigError(
        f"external_launcher needs the variable {name}, which a launcher sets.",
        where=FLAG,
        fix="start with torchrun --nproc-per-node N -m dovetail serve ..., or use mp.",
    )
