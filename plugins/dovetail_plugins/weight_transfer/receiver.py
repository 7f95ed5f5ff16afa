"""Receiver: a rank's groups with trainers, and the files into which it receives their tensors.

The first rank of a machine writes; the others take part and drop what they get. The file is then
read as a checkpoint is, so nothing changes unless all of it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dovetail.errors import RequestError
from dovetail_plugins.weight_transfer.described import Described
from dovetail_plugins.weight_transfer.group import BACKENDS, Meeting, TransferGroup, join
from dovetail_plugins.weight_transfer.memory_file import MemoryFile, in_order
from dovetail_plugins.weight_transfer.memory_format import SUFFIX


class Receiver:
    """The groups of a rank on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._groups: dict[str, TransferGroup] = {}
        self._members: dict[str, int] = {}
        self._unfinished: dict[str, tuple[str, int]] = {}
        """The folder of an update whose last tensors have not come, and its parts so far."""

    def members(self) -> dict[str, int]:
        """Return the groups by name, with the number of ranks that have joined together."""
        return {name: self._members[name] for name in self._groups}

    def join(self, meeting: Meeting, offset: int, ticket: str, members: int) -> None:
        """Join a group together with the ranks of one ticket, instead of a group with its name.
        Raises: RequestError. Mutates: self"""
        if meeting.backend not in BACKENDS:
            raise RequestError(
                f'"{meeting.backend}" is none of them.', where="backend",
                fix=f"use one of: {', '.join(BACKENDS)}.",
            )  # fmt: skip
        if BACKENDS[meeting.backend] not in ("cpu", self._device.type):
            raise RequestError(
                f"{meeting.backend} is for GPUs, and the engine is on a {self._device.type}.",
                where="backend",
                fix="use gloo.",
            )
        self.leave(meeting.name)
        self._groups[meeting.name] = join(meeting, offset, ticket, str(self._device))
        self._members[meeting.name] = members

    def leave(self, name: str) -> None:
        """Leave a group, if the rank is in it. Mutates: self"""
        self._unfinished.pop(name, None)
        group = self._groups.pop(name, None)
        if group is not None:
            group.close()

    def receive(
        self, name: str, announced: Sequence[Described], folder: str, *, is_last: bool
    ) -> str:
        """Receive tensors, in the order of their announcement, into a new folder, or into that of
        earlier ones that were not the last; return it. Raises: RequestError if they did not come;
        then the rank leaves the group. Mutates: self, the folder"""
        if name not in self._groups:
            raise RequestError(
                f'this rank is in no group "{name}".', where="group_name", fix="open it first.",
                status=409,
            )  # fmt: skip
        folder, part = self._unfinished.pop(name, (folder, 0))
        try:
            self._receive_part(self._groups[name], announced, file_in(folder, part))
        except (RuntimeError, RequestError) as error:
            self.leave(name)
            reason = str(error).partition("\n")[0].rstrip(".")
            raise RequestError(
                f"not all weights were received: {reason}.",
                where="group_name",
                fix="open the group again, and send what was announced.",
                status=error.status if isinstance(error, RequestError) else 504,
            ) from error
        if not is_last:
            self._unfinished[name] = folder, part + 1
        return folder

    @torch.inference_mode()
    def _receive_part(
        self, group: TransferGroup, announced: Sequence[Described], file: Path
    ) -> None:
        written = _new_file(file, announced)
        for one in announced:
            _receive(group, one, None if written is None else written.tensors[one.name])
        if written is not None:
            written.path.rename(file)

    def close(self) -> None:
        """Leave all groups. May be called twice."""
        for name in list(self._groups):
            self.leave(name)


def _new_file(file: Path, announced: Sequence[Described]) -> MemoryFile | None:
    """Return a file for tensors; None if another rank has made it. Raises: RequestError"""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        return MemoryFile(file.with_suffix(".part"), in_order(announced))
    except FileExistsError:
        return None


def _receive(group: TransferGroup, one: Described, place: torch.Tensor | None) -> None:
    """Receive a tensor; write it into a place, if there is one. Mutates: place"""
    if place is not None and group.device == "cpu":
        group.broadcast(place)
        return
    received = torch.empty(one.shape, dtype=getattr(torch, one.dtype), device=group.device)
    group.broadcast(received)
    if place is not None:
        place.copy_(received)


def file_in(folder: str, number: int) -> Path:
    """Return the file of a part of the weights."""
    return Path(folder) / f"part-{number:05}{SUFFIX}"
