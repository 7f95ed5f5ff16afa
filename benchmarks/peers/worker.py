"""One engine in one process, which gets its tasks as JSON lines on standard input.

Started by engine_process.py with the python of the engine's own venv, the checkout on its path:
`python -P -m benchmarks.peers.worker DRIVER --model PATH --checkpoint PATH --threads N --options
JSON`. Answers go to the original standard output, one JSON line a command; whatever the engine
prints goes to standard error. Commands: {"do": "prepare"|"run"|"facts"|"end", ...}.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.drivers.trace import Setting


def main() -> None:
    """Load the engine, then obey until told to end or standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--options", default="{}")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines print to standard output too

    start_s = time.perf_counter()
    setting = Setting(
        model=arguments.model,
        checkpoint=arguments.checkpoint,
        num_threads=arguments.threads,
        options=json.loads(arguments.options),
    )
    driver = importlib.import_module(f"benchmarks.peers.drivers.{arguments.driver}").Driver(setting)
    answers.write(json.dumps({"load_s": time.perf_counter() - start_s}) + "\n")
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "end":
            break
        answers.write(json.dumps(obey(driver, command)) + "\n")
    answers.flush()
    os._exit(0)  # some engines hang or crash in their own teardown, which nobody measures


def obey(driver: Any, command: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one command. Raises: ValueError for one that does not exist."""
    if command["do"] == "facts":
        return dict(driver.facts())
    if command["do"] == "prepare":
        driver.prepare(command["sequences"], command["tokens_each"])
        return {}
    if command["do"] != "run":
        raise ValueError(f"no such command: {command}")
    before_s = time.process_time()
    trace = driver.run(command["prompts"], command["num_new"])
    cpu_s = time.process_time() - before_s
    steps_s = [b - a for a, b in zip(trace.ends_s, trace.ends_s[1:], strict=False)]
    return {
        "wall_s": trace.end_s - trace.start_s,
        "cpu_s": cpu_s,
        "steps_s": steps_s,
        "num_tokens": trace.num_tokens,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """Return the largest resident size this process has had."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
