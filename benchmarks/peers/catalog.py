"""The engines that can be compared: where each is installed, which file it loads, how wide it is.

A table and the reading of `--engine "NAME@WIDTH: FLAGS"`. Starts nothing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTHS = (32, 16, 8, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine on one file. `venv` None is the python that runs the script.

    `width` is the group it is compared in; `bits` what a weight takes in memory, scales included.
    `model` is the suffix of the file or folder beside the checkpoint, "" the checkpoint itself.
    """

    name: str
    driver: str
    width: int
    bits: float
    venv: str | None
    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_dovetail(self) -> bool:
        """Return whether this is ours, the one that ratios are taken of."""
        return self.driver == "dovetail"

    def python(self, venvs: Path, own: str) -> str:
        """Return the interpreter that runs it."""
        return own if self.venv is None else str(venvs / self.venv / "bin" / "python")

    def path(self, models: Path, model: str) -> Path:
        """Return the file or folder it loads."""
        return models / f"{model}{self.model}"


def _llamacpp(kind: str, width: int, bits: float) -> list[Engine]:
    """Return the wheel's engine and the one built for the machine."""
    return [
        Engine(
            name=f"{driver}-{kind}",
            driver=driver,
            width=width,
            bits=bits,
            venv=venv,
            model=f"-{kind}.gguf",
        )
        for driver, venv in (("llamacpp", "llamacpp"), ("xllamacpp", "xllamacpp"))
    ]


PEERS: tuple[Engine, ...] = (
    *_llamacpp("f16", 16, 16),
    *_llamacpp("bf16", 16, 16),
    *_llamacpp("q8_0", 8, 8.5),
    *_llamacpp("q4_0", 4, 4.8),  # 4.5, and 8.5 for the embedding
    Engine(
        name="openvino-fp16", driver="openvino", width=16, bits=16, venv="openvino",
        model="-openvino-fp16",
    ),
    Engine(
        name="openvino-fp16-f32", driver="openvino", width=16, bits=16, venv="openvino",
        model="-openvino-fp16", options={"INFERENCE_PRECISION_HINT": "f32"},
    ),
    Engine(
        name="openvino-int8", driver="openvino", width=8, bits=8, venv="openvino",
        model="-openvino-int8",
    ),
    Engine(
        name="openvino-int4", driver="openvino", width=4, bits=4.5, venv="openvino",
        model="-openvino-int4",
    ),
    Engine(
        name="ctranslate2-int8", driver="ctranslate2", width=8, bits=8, venv="ctranslate2",
        model="-ctranslate2-int8",
    ),
    Engine(
        # Off Intel it stays at AVX2 by itself.
        name="ctranslate2-int8-avx512", driver="ctranslate2", width=8, bits=8,
        venv="ctranslate2", model="-ctranslate2-int8",
        environment={"CT2_FORCE_CPU_ISA": "AVX512"},
    ),
    Engine(
        name="ctranslate2-float32", driver="ctranslate2", width=32, bits=32,
        venv="ctranslate2", model="-ctranslate2-float32",
    ),
    Engine(name="vllm-bf16", driver="vllm", width=16, bits=16, venv="vllm"),
    Engine(
        name="vllm-compiled-bf16", driver="vllm", width=16, bits=16, venv="vllm",
        options={"enforce_eager": False},
    ),
    Engine(
        name="vllm-f32", driver="vllm", width=32, bits=32, venv="vllm",
        options={"dtype": "float32"},
    ),
    Engine(
        name="transformers-bf16", driver="transformers", width=16, bits=16, venv=None,
        options={"dtype": "bfloat16"},
    ),
    Engine(
        name="transformers-f32", driver="transformers", width=32, bits=32, venv=None,
        options={"dtype": "float32"},
    ),
)  # fmt: skip


def dovetail_engine(text: str) -> Engine:
    """Return ours from "NAME: FLAGS" or "NAME@WIDTH: FLAGS".

    Without @WIDTH the number that ends the name counts, when it is a width; else 16.
    Raises: ValueError
    """
    head, colon, flags = text.partition(":")
    if not colon:
        raise ValueError(f'--engine {text!r} has no colon; write "NAME: FLAGS"')
    name, at, told = head.strip().partition("@")
    ending = re.search(r"\d+$", told if at else name)
    number = int(ending.group()) if ending else 0
    if at and number not in WIDTHS:
        raise ValueError(f"--engine {text!r}: the width must be one of {WIDTHS}")
    width = number if number in WIDTHS else 16
    options = {"flags": shlex.split(flags)}
    return Engine(name=name, driver="dovetail", width=width, bits=width, venv=None, options=options)


def chosen(names: list[str], models: Path, model: str, venvs: Path, own: str) -> list[Engine]:
    """Return the named peers ("all": every one), without those that are not installed here.

    Raises: ValueError for a name that is not in the table.
    """
    table = {engine.name: engine for engine in PEERS}
    unknown = sorted(set(names) - {*table, "all"})
    if unknown:
        raise ValueError(f"no such peer: {', '.join(unknown)}; known: {', '.join(table)}")
    wanted = list(table) if "all" in names else names
    found = []
    for engine in (table[name] for name in wanted):
        needs = [Path(engine.python(venvs, own)), engine.path(models, model)]
        missing = [str(path) for path in needs if not path.exists()]
        if missing:
            print(f"{engine.name} left out: no {' and no '.join(missing)}", flush=True)
        else:
            found.append(engine)
    return found
