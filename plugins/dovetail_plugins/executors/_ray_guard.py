"""A process that kills the rest of a Ray cluster once the process that started it is gone.

Ray's own agents notice the death of their cluster only after half a minute. Reads lines "PID
CREATE_TIME" from standard input; its end is the end of the parent.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import psutil

from dovetail.processes.process import child_environment


class Guard:
    """The guard, as the process that it watches sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C must not reach it
            text=True,
        )

    def watch(self) -> None:
        """See that everything that runs below this process now ends with it."""
        own = self._process.pid
        below = [child for child in psutil.Process().children(recursive=True) if child.pid != own]
        assert self._process.stdin is not None, "it is a pipe"
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.stdin.write(f"{child.pid} {child.create_time()}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let it kill the rest."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Read the processes to watch until the parent is gone, then kill those that are left."""
    known = [line.split() for line in sys.stdin]
    for pid, created_s in known:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if process.create_time() == float(created_s):  # the number is not another's by now
                process.kill()


if __name__ == "__main__":
    main()
