"""Every causal architecture of the installed transformers: native, backed or refused by dovetail.

    python -m benchmarks.architectures [MODEL_TYPE...] [--media] [--again] [--minutes 9]

With --media every architecture that takes images or sound beside text, with its processor.

Each gets a tiny random checkpoint and a limit of processor time; a few share a process, and what
goes wrong there is tried again in one of its own. What is served has to answer as transformers' own
code does, and `dovetail inspect` has to say the same as the engine. Results are kept in a file, so
that a run that was stopped goes on where it was; those of another version of transformers are made
again.
`make sweep` runs it; `make docs` writes docs/reference/architectures.md from the file.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

REFERENCE = ROOT / "docs" / "reference"
PAGE, MEDIA_PAGE = REFERENCE / "architectures.json", REFERENCE / "media_architectures.json"
LIMIT_S = 240
"""Processor time of one architecture."""
WAITING = 20
"""By how many times that it may take longer, where others use the machine, or it hangs."""
TOGETHER = 6
"""Types that a process judges, one after the other."""
UNMADE = "unmade"
"""transformers' own class cannot be made small here: nothing was tried."""
FAULTS = ("wrong", "crash")


def judged(model_type: str, *, with_media: bool) -> dict[str, str]:
    """Return the verdict on a tiny checkpoint of a model type."""
    import transformers

    from dovetail.errors import ConfigError
    from support.media_verdicts import media_verdict
    from support.tiny_configs import write_tiny
    from support.tiny_wholes import write_whole
    from support.verdicts import verdict_of

    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        try:
            if with_media:
                verdict = media_verdict(write_whole(folder, model_type, media_names()[model_type]))
            else:
                verdict = verdict_of(write_tiny(folder, model_type))
        except ConfigError as error:
            return {"state": UNMADE, "reason": error.what}
    return {"state": verdict.state, "reason": verdict.reason}


def judge_all(model_types: Sequence[str], *, with_media: bool) -> None:
    """Print a line of each type's verdict, while the processor time of each lasts."""
    for model_type in model_types:
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + LIMIT_S
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        print(json.dumps(judged(model_type, with_media=with_media)), flush=True)


def apart(model_types: Sequence[str], *, with_media: bool) -> dict[str, dict[str, str]]:
    """Return the verdicts that one process comes to: of all types, or of those before one that ends
    it; the reason stands with that one. Several share the time that imports take."""
    media = ["--media"] * with_media
    command = [sys.executable, "-m", "benchmarks.architectures", *media, "--child", *model_types]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=WAITING * LIMIT_S
        )
        text, why = done.stdout, _why(done)
    except subprocess.TimeoutExpired as error:
        told = error.stdout or b""
        text = told.decode() if isinstance(told, bytes) else told
        why = f"not done within {WAITING * LIMIT_S} s"
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    found = dict(zip(model_types, lines, strict=False))
    if why:
        found[model_types[len(lines)]] = {"state": "crash", "reason": why}
    return found


def _why(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a process ended before it was done, empty if it was."""
    if done.returncode == -signal.SIGXCPU:
        return f"not done within {LIMIT_S} s of processor time"
    last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    return last[0] if done.returncode else ""


def verdicts(
    model_types: Sequence[str], *, with_media: bool
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each type with its verdict. A fault of one that was not alone in its process is no
    verdict: it gets a process of its own."""
    left = list(model_types)
    while left:
        found = apart(left[:TOGETHER], with_media=with_media)
        for name, result in found.items():
            is_sure = result["state"] not in FAULTS or len(left[:TOGETHER]) == 1
            yield name, result if is_sure else apart([name], with_media=with_media)[name]
        left = left[len(found) :]


def names() -> dict[str, str]:
    """Return model type -> class of all that transformers offers for causal generation, and of the
    classes with images of which such a one is the text part."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    from dovetail.config.rules.model.transformers_models import known_classes

    causal = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    known = known_classes()
    wider = {
        name: kind
        for name, kind in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
        if name not in causal
        and known.has_text_part(kind, CONFIG_MAPPING[name]().get_text_config().model_type)
    }
    return causal | wider


def media_names() -> dict[str, str]:
    """Return model type -> class of all that transformers offers for text that follows images or
    sound, and that has a processor."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    every = {
        **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    return {name: kind for name, kind in every.items() if name in PROCESSOR_MAPPING_NAMES}


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
    parser.add_argument("--again", action="store_true", help="all, whether done or not")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: never")
    parser.add_argument("--media", action="store_true", help="those that take images or sound")
    parser.add_argument("--page", type=Path, help="file of the results, where not the reference's")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        judge_all(args.child, with_media=args.media)
        return 0
    import transformers

    known = media_names() if args.media else names()
    page = args.page or (MEDIA_PAGE if args.media else PAGE)
    found = read(page, transformers.__version__)
    if args.again and not args.model_type:
        found["results"] = {}
    left = args.model_type or [name for name in known if name not in found["results"]]
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    for done, (name, verdict) in enumerate(verdicts(left, with_media=args.media), start=1):
        result = {"architecture": known[name], **verdict}
        print(f"{name}: {result['state']} {result['reason'][:300]}", flush=True)
        found["results"][name] = result
        write(page, found)
        if time.monotonic() > end and done < len(left):
            print(f"{len(left) - done} are left: run it again")
            break
    return int(any(one["state"] in FAULTS for one in found["results"].values()))


if __name__ == "__main__":
    sys.exit(main())
