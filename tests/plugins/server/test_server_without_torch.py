"""A server's process imports no torch, which would take longer than the rest of its start."""

from __future__ import annotations

import subprocess
import sys

from dovetail.processes.process import child_environment

SCRIPT = """
import sys
from dovetail.server.families import build_apis
import dovetail_plugins.commands.serve, dovetail.server.launch.serve, dovetail.server.app
build_apis()
sys.exit(", ".join({"torch", "transformers"} & set(sys.modules)) or 0)
"""


def test_all_families_of_endpoints() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=child_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
