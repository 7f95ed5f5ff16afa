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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

PAGE = ROOT / "docs" / "reference" / "architectures.json"
LIMIT_S = 240.0
"""Of one architecture."""
UNMADE = "unmade"
"""transformers' own class cannot be made small here: nothing was tried."""
FAULTS = ("wrong", "crash")


def judged(model_type: str) -> dict[str, str]:
    """Return the verdict on a tiny checkpoint of a model type."""
    import transformers

    from dovetail.errors import ConfigError
    from support.tiny_configs import write_tiny
    from support.verdicts import verdict_of

    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = write_tiny(folder, model_type)
        except ConfigError as error:
            return {"state": UNMADE, "reason": error.what}
        verdict = verdict_of(path)
    return {"state": verdict.state, "reason": verdict.reason}


def apart(model_type: str) -> dict[str, str]:
    """Return the verdict that a process of its own comes to within the limit."""
    command = [sys.executable, "-m", "benchmarks.architectures", "--child", model_type]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"state": "crash", "reason": f"not done within {LIMIT_S:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return {"state": "crash", "reason": last[0]}
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model_type", nargs="*", help="these alone, whether done or not")
    parser.add_argument("--again", action="store_true", help="forget what is done")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: never")
    parser.add_argument("--page", type=Path, default=PAGE, help="file of the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(judged(args.child)))
        return 0
    import transformers

    known = names()
    found = read(args.page, transformers.__version__)
    if args.again:
        found["results"] = {}
    left = args.model_type or [name for name in known if name not in found["results"]]
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    for done, name in enumerate(left):
        if time.monotonic() > end:
            print(f"{len(left) - done} are left: run it again")
            break
        result = {"architecture": known[name], **apart(name)}
        print(f"{name}: {result['state']} {result['reason'][:300]}", flush=True)
        found["results"][name] = result
        write(args.page, found)
    return int(any(one["state"] in FAULTS for one in found["results"].values()))


if __name__ == "__main__":
    sys.exit(main())
