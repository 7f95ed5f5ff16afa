"""How a trainer's weights reach a running engine without a checkpoint: memory files and groups.

A trainer uses `SharedWeights` on the same machine, and `TrainerGroup` from anywhere.
"""

from __future__ import annotations

from dovetail_plugins.weight_transfer.shared_weights import SharedWeights
from dovetail_plugins.weight_transfer.trainer_group import TrainerGroup

__all__ = ["SharedWeights", "TrainerGroup"]
