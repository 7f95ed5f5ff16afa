"""What requests say of the order of samplers, in the words of three servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail_plugins.logits_processors.samplers import _steps

FIELDS = {
    "samplers": "the samplers in order, in llama.cpp's names or letters; those left out are off",
    "sampler_priority": "the samplers in order, in text-generation-webui's names",
    "sampler_order": "the samplers in order, by KoboldCpp's numbers",
    "temperature_last": "whether the temperature comes after all filters",
    "min_keep": "how many tokens a filter leaves at least",
}
Names = Mapping[Any, tuple[str, ...]]

WARM = ("dynamic_temperature", "temperature", "logit_smoothing")
LLAMA: Names = {
    "penalties": ("penalties",),
    "dry": ("dry",),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typ_p": ("typical",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc",),
    "temperature": WARM,
}
"""llama.cpp's chain: its names in its order."""
NEWER = ("penalties", "top_n_sigma")
"""Samplers that older chains leave out although they apply."""
WHOLE = tuple(tuple(one for one in LLAMA if one not in NEWER[at:]) for at in range(len(NEWER) + 1))
LLAMA_WORDS = {
    **{name: name for name in LLAMA},
    **dict.fromkeys(("typical_p", "typ-p", "typical", "typical-p", "typ"), "typ_p"),
    **{name.replace("_", "-"): name for name in LLAMA},
    "nucleus": "top_p", "temp": "temperature", "infill": "infill", "adaptive-p": "adaptive_p",
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p",
    "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill", "a": "adaptive_p",
}  # fmt: skip
"""Its spellings, and the letters of a chain that is one word. `infill` and `adaptive_p` have places
of their own wherever they are named."""
WEBUI: Names = {
    "repetition_penalty": ("penalties",),
    "presence_penalty": (),
    "frequency_penalty": (),
    "dry": ("dry",),
    "temperature": ("temperature",),
    "dynamic_temperature": ("dynamic_temperature",),
    "quadratic_sampling": ("logit_smoothing",),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "typical_p": ("typical",),
    "epsilon_cutoff": ("epsilon_cutoff",),
    "eta_cutoff": ("eta_cutoff",),
    "tfs": ("tail_free",),
    "top_a": ("top_a",),
    "min_p": ("min_p",),
    "adaptive_p": ("adaptive_p",),
    "mirostat": ("mirostat",),
    "xtc": ("xtc",),
    "encoder_repetition_penalty": ("encoder_repetition_penalty",),
    "no_repeat_ngram": ("no_repeat_ngram",),
}
"""The three penalties are one step, at the place of the first."""
KOBOLD: Names = {
    0: ("top_k",),
    1: ("top_a",),
    2: ("top_p", "min_p"),
    3: ("tail_free",),
    4: ("typical",),
    5: WARM,
    6: ("penalties",),
}
MAX_KEEP = 1 << 31
MAX_SHOWN = 64
Order = tuple[list[str], set[str]]


def wish_of(extra: Mapping[str, Any]) -> tuple[list[str], set[str], int]:
    """Return (the steps in order, those that are off, the least number of tokens).

    Raises: RequestError naming the field that is wrong
    """
    sent = [name for name in _READERS if is_sent(extra.get(name))]
    if len(sent) > 1:
        raise RequestError(f"{' and '.join(sent)} exclude each other.", where=sent[-1])
    keep = extra.get("min_keep") or 0
    if isinstance(keep, bool) or not isinstance(keep, int) or not 0 <= keep <= MAX_KEEP:
        raise RequestError(f"must be a number of tokens, up to {MAX_KEEP}.", where="min_keep")
    names, off = _READERS[sent[0]](extra[sent[0]]) if sent else ([], set())
    return [name for name in _completed(names) if name not in off], off, keep


def is_sent(value: Any) -> bool:
    """Return whether the value of a field asks for something."""
    return value is not None and value is not False and value not in ("", [])


def chain_of(value: Any) -> list[str]:
    """Return llama.cpp's chain, spelled in one way: a list, names with semicolons, or letters.

    Raises: RequestError
    """
    if isinstance(value, str):
        value = value.split(";") if ";" in value or value in LLAMA_WORDS else list(value)
    return _named(value, "samplers", LLAMA_WORDS, tuple(LLAMA))


def _llama(value: Any) -> Order:
    names = [name for name in chain_of(value) if name in LLAMA]
    if tuple(names) in WHOLE:
        names = list(LLAMA)
    off = {step for name in LLAMA if name not in names for step in LLAMA[name]}
    return _steps_of(names, LLAMA), off - {"logit_smoothing"}


def _webui(value: Any) -> Order:
    if isinstance(value, str):
        value = value.replace(",", "\n").split()
    words = {name: name for name in WEBUI}
    return _steps_of(_named(value, "sampler_priority", words, tuple(WEBUI)), WEBUI), set()


def _kobold(value: Any) -> Order:
    words = {number: number for number in KOBOLD}
    numbers = _named(value, "sampler_order", words, tuple(KOBOLD))
    return _steps_of([*(() if 6 in numbers else (6,)), *numbers], KOBOLD), set()


def _last(value: Any) -> Order:
    if value is not True:
        raise RequestError("must be true or false.", where="temperature_last")
    usual = list(_steps.steps())
    filters = usual[usual.index("temperature") : usual.index("top_p") + 1]
    return [*(name for name in filters if name not in WARM), *WARM], set()


_READERS: Mapping[str, Callable[[Any], Order]] = {
    "samplers": _llama,
    "sampler_priority": _webui,
    "sampler_order": _kobold,
    "temperature_last": _last,
}


def _named(value: Any, where: str, words: Mapping[Any, Any], choices: tuple[Any, ...]) -> list[Any]:
    """Return the names of a list, each spelled in one way. Raises: RequestError for another shape,
    an unknown name, or one that comes twice"""
    if not isinstance(value, list | tuple):
        raise RequestError("must be a list of samplers.", where=where)
    fix = f"choose among {', '.join(map(str, choices))}."
    for one in value:
        if isinstance(one, bool) or not isinstance(one, str | int) or one not in words:
            what = f"{json.dumps(one)[:MAX_SHOWN]} is not a sampler."
            raise RequestError(what, where=where, fix=fix, code="unsupported_field")
    names = [words[one] for one in value]
    if len(set(names)) < len(names):
        raise RequestError("a sampler is named twice.", where=where, fix="name each once.")
    return names


def _steps_of(names: Sequence[Any], table: Names) -> list[str]:
    return [step for name in names for step in table[name]]


def _completed(names: Sequence[str]) -> list[str]:
    """Return an order with the steps that it does not name: those before the temperature first,
    others last, and at the very end those after top-p.
    """
    usual = list(_steps.steps())
    if not names:
        return usual
    others = [name for name in usual if name not in names]
    first, last = usual.index("temperature"), usual.index("top_p") + 1
    before = [name for name in others if usual.index(name) < first]
    after = [name for name in others if usual.index(name) >= last]
    between = [name for name in others if name not in before and name not in after]
    return [*before, *names, *between, *after]
