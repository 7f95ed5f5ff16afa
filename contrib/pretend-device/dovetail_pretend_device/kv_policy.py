"""Reserve: dovetail's paged cache less a share of blocks that the device keeps for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dovetail.engine.kv.paged import Paged
from dovetail.interfaces.data.step import KVLayer, KVLayout
from dovetail.interfaces.kv_policy import KVRoom
from dovetail.interfaces.plugin import Info


class Reserve(Paged):
    """Leaves a share of the memory to the device's programs."""

    interface_version = 1
    info = Info(summary="paged blocks, a share of the memory left to the device")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """How much is left."""

        share: float = field(
            default=0.125,
            metadata={"help": "share of the memory that stays free", "ge": 0, "le": 0.5},
        )

    def plan(self, layers: Sequence[KVLayer], room: KVRoom) -> KVLayout:
        """Return the layout of what is left. A number of blocks that was asked for is kept."""
        if room.memory_bytes is not None:
            kept = int(room.memory_bytes * (1 - self.options.share))
            room = replace(room, memory_bytes=kept)
        return super().plan(layers, room)
