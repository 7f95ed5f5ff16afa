"""The page of architectures: what becomes of every causal class of transformers.

The facts come from architectures.json, which benchmarks/architectures.py writes (`make sweep`).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parent / "reference"
FOUND, WITH_MEDIA = REFERENCE / "architectures.json", REFERENCE / "media_architectures.json"
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
or does not run on the machine of the trial. Of a model that takes images or sound this list has the
text part alone, as it is served of a checkpoint without a processor; the second list has the rest.

Encoders stand in another list: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ModernBERT,
NomicBERT, GTE (`NewModel`, `GteModel`), MPNet, DeBERTa v2 and v3, the encoders of T5, mT5 and
UMT5, and Jina BERT v2 have plugins of their own, which tell vectors, classes of texts and of
tokens. Tests compare them with transformers (Jina BERT with its formulas). A class that generates
is not theirs: for example `BertLMHeadModel` runs over transformers. InternLM2 (and its reward
models), MiMo, EXAONE 3, MiniCPM, Baichuan, DeepSeekMoE and
DeciLM (Nemotron Super and Ultra), which transformers does not have, are served too.

{counts}. `make sweep` tries them all again, `python -m benchmarks.architectures NAME` one alone.

| model type | class | | why not |
|---|---|---|---|"""


SPARSE = """\

## Sparse attention

Served by own plugins: DeepSeek V3.2, GLM-5, A.X K2 and Hunyuan 4, where an indexer picks the
latents that a query attends to; MiniMax M3, where it picks blocks of keys and values for each kv
head; GLM-5-Next, where it picks pools of latents; Qwen4-Exp, where it picks pools of
keys and values for all heads; DeepSeek V4, where it picks entries that cover several tokens; and
Dots3 Note, whose other layers attend to latents in a window.
[kv_cache.md](../explanation/kv_cache.md) says how. No class of transformers is refused for its
sparse layers."""


MEDIA_HEAD = """\

## With images and sound

{note_media}Every class of transformers for text behind images or sound, with its processor:
greedy text of prompts with one medium, with two, with none and with one again, all at once and each
alone, equal to that of transformers' own code (float32). *Own plugin*: transformers' encoder with
dovetail's linear layers before dovetail's own text model; *over transformers*: before transformers'
text model with dovetail's attention, KV cache and linear layers. What is refused serves its text
part with `--limit-mm-per-prompt '{{"image": 0, "audio": 0}}'` where the list above has it. Videos
are read for the families of [media.md](../how_to/media.md) alone.

{counts}. `python -m benchmarks.architectures --media NAME` tries one alone; many processors need
torchvision.

| model type | class | | why not |
|---|---|---|---|"""


PUBLISHED_HEAD = """\

## Class names of model cards

Published checkpoints whose class transformers has under another name or not at all, read as
checkpoints of a class that is served. Tests compare each with transformers' own code for the same
model. A class that is in none of these lists is served by the next entry of `architectures`, or by
the class that `model_type` names, if that is served and the checkpoint brings no code along.

| class | | why not |
|---|---|---|"""


def architectures_page(note: str) -> str:
    """Return the page; `note` says that it is written by a script."""
    alone, with_media = (_read(file) for file in (FOUND, WITH_MEDIA))
    version = alone["transformers"]
    head = HEAD.format(note=note, version=version, counts=_counts(alone))
    media_version = with_media["transformers"]
    note_media = "" if media_version == version else f"(transformers {media_version}.) "
    second = MEDIA_HEAD.format(note_media=note_media, counts=_counts(with_media))
    tables = [
        head,
        *_rows(alone),
        SPARSE,
        second,
        *_rows(with_media),
        PUBLISHED_HEAD,
        *_published(),
    ]
    return "\n".join(tables) + "\n"


def _published() -> list[str]:
    """Return the rows of the table of published classes."""
    from dovetail_plugins.published.config import PUBLISHED
    from dovetail_plugins.published.layouts import BY_TYPE, REFUSED

    rows = {name: ("text part" if one.lacks else "served", one.lacks and f"no {one.lacks}")
            for name, one in PUBLISHED.items()}  # fmt: skip
    rows |= dict.fromkeys(BY_TYPE, ("served", ""))
    rows |= {name: ("refused", why) for name, why in REFUSED.items()}
    return [f"| `{name}` | {state} | {why} |" for name, (state, why) in sorted(rows.items())]


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _counts(found: dict[str, Any]) -> str:
    """Return how many there are of each state."""
    counted = Counter(one["state"] for one in found["results"].values())
    parts = [f"{counted[state]} {word}" for state, word in WORDS.items() if counted[state]]
    return f"{len(found['results'])}: {', '.join(parts)}"


def _rows(found: dict[str, Any]) -> list[str]:
    """Return the rows of a table."""
    return [
        f"| `{name}` | `{one['architecture']}` | {WORDS[one['state']]} | {_reason(one['reason'])} |"
        for name, one in sorted(found["results"].items())
    ]


def _reason(text: str) -> str:
    """Return why, without what all refusals begin with, as one cell."""
    _, _, short = text.rpartition("transformers-backed model: ")
    return " ".join(short.split()).replace("|", "\\|").replace("<", "\\<").removesuffix(".")
