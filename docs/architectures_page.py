"""The page of architectures: what becomes of every causal class of transformers.

The facts come from architectures.json, which benchmarks/architectures.py writes (`make sweep`).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

FOUND = Path(__file__).parent / "reference" / "architectures.json"
WORDS = {
    "native": "own plugin",
    "backed": "over transformers",
    "refused": "refused",
    "unmade": "not tried",
    "wrong": "WRONG",
    "crash": "CRASH",
}
"""A state -> what the page calls it."""
HEAD = """\
# Architectures

{note}

Every class that transformers {version} has for causal text generation, tried with a small random
checkpoint each: prompts of several lengths side by side, cut into steps, then greedy tokens. What
is served gives the log probabilities of transformers' own code to within 0.001 (float32), and
`dovetail inspect` says the same as `dovetail serve`. *Own plugin*: dovetail's own model; *over
transformers*: transformers' model with dovetail's attention, KV cache and linear layers; *refused*:
the server says why and does not start; *not tried*: transformers' own class could not be made small
or does not run on the machine of the trial. Of a model that takes images or sound the text part is
served, without them.

Encoders stand in another list: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ModernBERT,
NomicBERT, GTE (`NewModel`, `GteModel`), MPNet, DeBERTa v2 and v3, the encoders of T5, mT5 and
UMT5, and Jina BERT v2 have plugins of their own, which tell vectors, classes of texts and of
tokens. Tests compare them with transformers (Jina BERT with its formulas). A class that generates
is not theirs: for example `BertLMHeadModel` runs over transformers. InternLM2 (and its reward
models), MiMo, EXAONE 3, MiniCPM and Baichuan, which transformers does not have, are served too.

{counts}. `make sweep` tries them all again, `python -m benchmarks.architectures NAME` one alone.

| model type | class | | why not |
|---|---|---|---|"""


def architectures_page(note: str) -> str:
    """Return the page; `note` says that it is written by a script."""
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8"))
    results: dict[str, dict[str, str]] = found["results"]
    counted = Counter(one["state"] for one in results.values())
    counts = ", ".join(
        f"{counted[state]} {word}" for state, word in WORDS.items() if counted[state]
    )
    head = HEAD.format(note=note, version=found["transformers"], counts=f"{len(results)}: {counts}")
    rows = [
        f"| `{name}` | `{one['architecture']}` | {WORDS[one['state']]} | {_reason(one['reason'])} |"
        for name, one in sorted(results.items())
    ]
    return "\n".join([head, *rows]) + "\n"


def _reason(text: str) -> str:
    """Return why, without what all refusals begin with, as one cell."""
    _, _, short = text.rpartition("transformers-backed model: ")
    return " ".join(short.split()).replace("|", "\\|").replace("<", "\\<").removesuffix(".")
