"""The server behind `dovetail run`: `python -m dovetail.cli.behind_child`, started by `cli.behind`.

Reads its settings as one line of JSON from standard input; the end of that pipe means that the
terminal's side is gone or wants it to end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from dovetail.cli.main import guarded


def main() -> int:
    """Serve as told until standard input ends; return the exit status."""
    return guarded(_serve)


def _serve() -> int:
    from dovetail.config.engine import Config
    from dovetail.config.selections import load_plugin_files

    fields = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_watch_parent, name="lifeline", daemon=True).start()
    config = Config.from_fields(fields)
    load_plugin_files(config)
    from dovetail.server.launch import run

    return run(config)


def _watch_parent() -> None:
    while os.read(0, 1):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
