"""byte_pipe: bytes between one process and several others, through memory that all have mapped.

`Pipes` is that memory: two rings of bytes for each of the others, one there and one back, and a
bell for each process, which rises whenever something happened that concerns it. Putting and taking
never wait; `BellWaiter` does, awake for a while and then asleep. On Linux, with the native library.
"""

from dovetail_kernels.byte_pipe.native import BellWaiter, PipeEnd, Pipes, missing_reason

__all__ = ["BellWaiter", "PipeEnd", "Pipes", "missing_reason"]
