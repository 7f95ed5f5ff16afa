"""Meeting: torch's store at an address, for the rendezvous of the ranks of all groups."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import Membership

if TYPE_CHECKING:
    import torch.distributed as dist


def meet(member: Membership) -> dist.Store:
    """Return the store of a group once all its ranks are there. Raises: ConfigError if they do not
    come in time."""
    import torch.distributed as dist

    try:
        base = _store(member.address, member.is_host, member.join_limit_s)
        engine = urlsplit(member.address).fragment
        store = dist.PrefixStore(f"{engine}/{member.group}", base)
        store.set(f"rank {member.rank}", "here")
        all_ranks = [f"rank {rank}" for rank in range(member.size)]
        store.wait(all_ranks, timedelta(seconds=member.join_limit_s))
    except (RuntimeError, ValueError) as error:
        raise unreachable(member, error) from error
    return store


def unreachable(member: Membership, error: Exception) -> ConfigError:
    """Return the error for ranks that could not meet."""
    reason = str(error).partition("\n")[0] or type(error).__name__
    return ConfigError(
        f"rank {member.rank} of {member.size} could not join the others at {member.address}: "
        f"{reason}",
        where="--tensor-parallel-size",
        fix="see the other ranks' log lines, and check that they can reach that address.",
    )


@cache
def _store(address: str, is_host: bool, limit_s: float) -> dist.Store:
    """Return the store at an address, one for all groups of this process."""
    import torch.distributed as dist

    url, limit = urlsplit(address), timedelta(seconds=limit_s)
    if url.scheme == "file":
        return dist.FileStore(url.path)
    if url.scheme != "tcp" or not url.hostname or not url.port:
        raise ValueError("it is neither file:///path nor tcp://host:port")
    return dist.TCPStore(url.hostname, url.port, is_master=is_host, timeout=limit)
