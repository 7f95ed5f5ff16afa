"""Every causal architecture of the installed transformers: native, backed or refused by dovetail.

    python -m benchmarks.architectures [MODEL_TYPE...] [--again] [--minutes 9] [--page FILE]

Each gets a tiny random checkpoint, in a process of its own with a time limit; what is served has to
answer as transformers' own code does, and `dovetail inspect` has to say the same as the engine.
Results are kept in a file after each architecture, so that a run that was stopped goes on where it
was; those of another version of transformers are made again. `make sweep` runs it; `make docs`
writes docs/reference/architectures.md from the file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "architectures.json"
LIMIT_S = 120.0
"""Of one architecture, after its process has started."""
UNMADE = "unmade"
"""transformers' own class cannot be made small here: nothing was tried."""
FAULTS = ("wrong", "crash")


def judged(model_type: str) -> dict[str, str]:
    """Return the verdict on a tiny checkpoint of a model type."""
    from dovetail.errors import ConfigError
    from dovetail.testing.tiny_configs import write_tiny
    from dovetail.testing.verdicts import verdict_of

    with tempfile.TemporaryDirectory() as folder:
        try:
            path = write_tiny(folder, model_type)
        except ConfigError as error:
            return {"state": UNMADE, "reason": error.what}
        verdict = verdict_of(path)
    return {"state": verdict.state, "reason": verdict.reason}


def _child(model_type: str, pipe: Any) -> None:
    """Send the verdict, or what was raised in place of one."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        found = judged(model_type)
    except Exception as error:  # the sweep tells what no user should see
        found = {"state": "crash", "reason": f"{type(error).__name__}: {error}"}
    pipe.send(found)
    pipe.close()


def apart(context: Any, model_type: str) -> dict[str, str]:
    """Return the verdict that a process of its own comes to within the limit."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(model_type, theirs))
    process.start()
    theirs.close()
    try:
        found: dict[str, str] = (
            ours.recv()
            if ours.poll(LIMIT_S)
            else {"state": "crash", "reason": f"not done within {LIMIT_S:.0f} s"}
        )
    except EOFError:
        process.join()
        found = {"state": "crash", "reason": f"the process ended with {process.exitcode}"}
    process.kill()
    process.join()
    return found


def names() -> dict[str, str]:
    """Return model type -> class of all that transformers offers for causal generation, and of the
    classes with images of which such a one is the text part."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    from dovetail.config.rules.transformers_models import known_classes

    causal = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    known = known_classes()
    wider = {
        name: kind
        for name, kind in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
        if name not in causal
        and known.has_text_part(kind, CONFIG_MAPPING[name]().get_text_config().model_type)
    }
    return causal | wider


def read(file: Path, version: str) -> dict[str, Any]:
    """Return the results of this version of transformers, empty ones where there are none."""
    fresh: dict[str, Any] = {"transformers": version, "results": {}}
    if not file.is_file():
        return fresh
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found if found["transformers"] == version else fresh


def write(file: Path, found: dict[str, Any]) -> None:
    """Write the results, whole or not at all."""
    ordered = {**found, "results": dict(sorted(found["results"].items()))}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(file)


def main() -> int:
    """Run what is left; return 1 where something was wrong or crashed."""
    import transformers

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model_type", nargs="*", help="these alone, whether done or not")
    parser.add_argument("--again", action="store_true", help="forget what is done")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: never")
    parser.add_argument("--page", type=Path, default=PAGE, help="file of the results")
    args = parser.parse_args()
    known = names()
    found = read(args.page, transformers.__version__)
    if args.again:
        found["results"] = {}
    left = args.model_type or [name for name in known if name not in found["results"]]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformers", "dovetail.testing.verdicts"])
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    for done, name in enumerate(left):
        if time.monotonic() > end:
            print(f"{len(left) - done} are left: run it again")
            break
        result = {"architecture": known[name], **apart(context, name)}
        print(f"{name}: {result['state']} {result['reason'][:300]}", flush=True)
        found["results"][name] = result
        write(args.page, found)
    return int(any(one["state"] in FAULTS for one in found["results"].values()))


if __name__ == "__main__":
    sys.exit(main())
