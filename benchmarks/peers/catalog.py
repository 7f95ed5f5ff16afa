"""The engines that can be compared: where each is installed, which file it loads, how wide it is.

A table, who of it can run here and why others cannot, and the reading of `--engine "NAME@WIDTH:
FLAGS"`. Starts nothing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.peers.isa import Hold, Processor

WIDTHS = (32, 16, 8, 4)
FAMILIES = {"openvino": "OpenVINO", "llamacpp": "llama.cpp", "xllamacpp": "llama.cpp"}
"""Drivers of the engines that are usually the best peer: llama.cpp for one sequence, OpenVINO for
prompts and batches. A comparison without either says so."""
USUAL_BEST = dict.fromkeys((16, 8, 4), ("llama.cpp", "OpenVINO"))
NOT_ASKED = "not asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine on one file. `venv` None is the python that runs the script.

    `width` is the group it is compared in; `bits` what a weight takes in memory, scales included.
    `model` is the suffix of the file or folder beside the checkpoint, "" the checkpoint itself.
    `held_by` says what keeps it at AVX2: variables, answers to cpuid, the wheel's build, or
    nothing, where it is built for the machine or asks for AVX-512 by name (`needs_avx512`).
    """

    name: str
    driver: str
    width: int
    bits: float
    venv: str | None
    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    held_by: Literal["variables", "cpuid", "build", "nothing"] = "variables"
    needs_avx512: bool = False

    @property
    def family(self) -> str:
        """Return the name that stands for all builds of an engine."""
        return FAMILIES.get(self.driver, self.driver)

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


_BUILDS: tuple[tuple[str, Literal["nothing", "build"]], ...] = (
    ("llamacpp", "nothing"),
    ("xllamacpp", "build"),
)


def _llamacpp(kind: str, width: int, bits: float) -> list[Engine]:
    """Return the wheel's engine and the one built for the machine."""
    return [
        Engine(
            name=f"{driver}-{kind}",
            driver=driver,
            width=width,
            bits=bits,
            venv=driver,
            model=f"-{kind}.gguf",
            held_by=held_by,
        )
        for driver, held_by in _BUILDS
    ]


PEERS: tuple[Engine, ...] = (
    *_llamacpp("f16", 16, 16),
    *_llamacpp("bf16", 16, 16),
    *_llamacpp("q8_0", 8, 8.5),
    *_llamacpp("q4_0", 4, 4.8),  # 4.5, and 8.5 for the embedding
    Engine(
        name="openvino-fp16", driver="openvino", width=16, bits=16, venv="openvino",
        model="-openvino-fp16", held_by="cpuid",
    ),
    Engine(
        name="openvino-fp16-f32", driver="openvino", width=16, bits=16, venv="openvino",
        model="-openvino-fp16", options={"INFERENCE_PRECISION_HINT": "f32"},
        held_by="cpuid",
    ),
    Engine(
        name="openvino-int8", driver="openvino", width=8, bits=8, venv="openvino",
        model="-openvino-int8", held_by="cpuid",
    ),
    Engine(
        name="openvino-int4", driver="openvino", width=4, bits=4.5, venv="openvino",
        model="-openvino-int4", held_by="cpuid",
    ),
    Engine(
        name="ctranslate2-int8", driver="ctranslate2", width=8, bits=8, venv="ctranslate2",
        model="-ctranslate2-int8",
    ),
    Engine(
        # Off Intel it stays at AVX2 by itself.
        name="ctranslate2-int8-avx512", driver="ctranslate2", width=8, bits=8,
        venv="ctranslate2", model="-ctranslate2-int8",
        environment={"CT2_FORCE_CPU_ISA": "AVX512"}, held_by="nothing", needs_avx512=True,
    ),
    Engine(
        name="ctranslate2-float32", driver="ctranslate2", width=32, bits=32,
        venv="ctranslate2", model="-ctranslate2-float32",
    ),
    Engine(
        name="vllm-bf16", driver="vllm", width=16, bits=16, venv="vllm", held_by="cpuid",
    ),
    Engine(
        name="vllm-compiled-bf16", driver="vllm", width=16, bits=16, venv="vllm",
        options={"enforce_eager": False}, held_by="cpuid",
    ),
    Engine(
        name="vllm-f32", driver="vllm", width=32, bits=32, venv="vllm",
        options={"dtype": "float32"}, held_by="cpuid",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where engines are looked for, and on what machine they would run."""

    models: Path
    model: str
    venvs: Path
    own: str
    machine: Processor
    hold: Hold

    def why_not(self, engine: Engine) -> str:
        """Return why an engine cannot run here; "" when it can."""
        python = Path(engine.python(self.venvs, self.own))
        file = engine.path(self.models, self.model)
        if engine.needs_avx512 and (self.hold.is_needed or not self.machine.has_avx512):
            return "asks for AVX-512"
        if self.hold.is_needed and engine.held_by == "nothing":
            return "cannot be limited to AVX2: built for this machine"
        if self.hold.is_needed and engine.held_by == "cpuid" and self.hold.why_no_trap:
            return f"cannot be limited to AVX2: it asks cpuid, and {self.hold.why_no_trap}"
        if not python.exists():
            return f"not installed: no {python}"
        return "" if file.exists() else f"no {file}"


def chosen(names: list[str], place: Place) -> tuple[list[Engine], list[tuple[Engine, str]]]:
    """Return the named peers ("all": every one) that can run, and all others with the reason.

    Raises: ValueError for a name that is not in the table.
    """
    table = {engine.name: engine for engine in PEERS}
    unknown = sorted(set(names) - {*table, "all"})
    if unknown:
        raise ValueError(f"no such peer: {', '.join(unknown)}; known: {', '.join(table)}")
    found, missing = [], []
    for engine in PEERS:
        is_wanted = "all" in names or engine.name in names
        why = place.why_not(engine) if is_wanted else NOT_ASKED
        if why:
            missing.append((engine, why))
        else:
            found.append(engine)
    return found, missing


def usual_best(width: int, *, uses_avx512: bool) -> dict[str, list[str]]:
    """Return, for the engines that are usually the best of a width, the names they have here.

    A wheel built for AVX2 is not the best of its family where AVX-512 is used.
    """
    peers = [peer for peer in PEERS if not (uses_avx512 and peer.held_by == "build")]
    return {
        family + (" built for this machine" if uses_avx512 and family == "llama.cpp" else ""): [
            peer.name for peer in peers if (peer.family, peer.width) == (family, width)
        ]
        for family in USUAL_BEST.get(width, ())
    }
