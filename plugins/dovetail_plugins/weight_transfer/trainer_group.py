"""TrainerGroup: a trainer's side of a process group with all ranks of a server's engines."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail_plugins.commands._client import Client

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.weight_transfer.group import TransferGroup

Made = TypeVar("Made")


class TrainerGroup:
    """A group with the engines of the server at `url`, which reach this machine at `address`. The
    server needs --enable-dev-endpoints. Leave the with block to close the group.

    With "gloo" tensors are sent from host memory, with "nccl" from this process's current GPU. Each
    step waits for at most `timeout_s`. Raises: ServerError, RequestError
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        address: str = "127.0.0.1",
        backend: str = "gloo",
        name: str = "weight_update_group",
        timeout_s: float = 60.0,
    ) -> None:
        from dovetail_plugins.weight_transfer.group import Meeting, host

        self._client, self._name, self._timeout_s = Client(url, api_key), name, timeout_s
        num_ranks = int(self._client.at_root("GET", "/get_world_size")["world_size"])
        meeting = Meeting(
            address=address,
            port=_free_port(address),
            world_size=1 + num_ranks,
            name=name,
            backend=backend,
            timeout_s=timeout_s,
        )
        body = {"master_address": address, "master_port": meeting.port, "backend": backend}
        body |= {"world_size": meeting.world_size, "group_name": name, "timeout": timeout_s}
        self._group: TransferGroup = self._together(
            "/init_weights_update_group", body, lambda: host(meeting)
        )

    def send(
        self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: str, aborts: bool = False
    ) -> None:
        """Send all weights, such as `model.named_parameters()`, and return once they are in use.
        Running requests go on, unless it `aborts` them. Raises: ServerError"""
        sent = [(name, tensor.detach().contiguous()) for name, tensor in tensors]
        body = {
            "names": [name for name, _ in sent],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in sent],
            "shapes": [list(tensor.shape) for _, tensor in sent],
            "group_name": self._name,
            "weight_version": version,
            "abort_all_requests": aborts,
        }
        self._together("/update_weights_from_distributed", body, lambda: self._broadcast(sent))

    def _broadcast(self, sent: list[tuple[str, torch.Tensor]]) -> None:
        for _, tensor in sent:
            self._group.broadcast(tensor.to(self._group.device))

    def _together(self, path: str, body: dict[str, Any], act: Callable[[], Made]) -> Made:
        """Send a request, and act until it is answered; return the action's result. Raises:
        ServerError before what the action raises"""
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(
                self._client.at_root, "POST", path, body, wait_s=2 * self._timeout_s
            )
            try:
                return act()
            finally:
                answer.result()

    def close(self) -> None:
        """Close the group. Raises: ServerError"""
        self._client.at_root("POST", "/destroy_weights_update_group", {"group_name": self._name})
        self._group.close()

    def __enter__(self) -> TrainerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
