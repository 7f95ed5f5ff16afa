"""collective: sums and exchanges of tensors between the processes of one machine.

`SharedMemoryRanks` puts tensors into memory that all ranks have mapped: no network, no copy by the
system. An all-reduce adds in float32 in the order of the ranks and rounds once, so every rank has
the same bits at every run. A rank that has ended, is stopped or makes another call than the others
ends theirs with a RankError that names it.

Shapes: all_reduce, broadcast x -> x; all_gather x -> [R, *x.shape]; reduce_scatter [R, ...] ->
[...]; all_to_all R pieces [T_r, ...] -> R pieces [T_q, ...]; send, receive x -> x of two ranks
"""

from dovetail_kernels.collective.meeting import RankError
from dovetail_kernels.collective.native import SharedMemoryRanks

__all__ = ["RankError", "SharedMemoryRanks"]
