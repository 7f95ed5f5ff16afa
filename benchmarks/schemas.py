"""Which schemas of the world each backend takes, and for what keyword it refuses the others.

    PYTHONPATH=core:plugins:kernels python benchmarks/schemas.py [--suite FOLDER]

Asks every backend alone, and all together as `auto` does, for each schema of tests/data/schemas,
for the metaschemas of the drafts, and, where its folder is given (tests/draft2020-12 of
github.com/json-schema-org/JSON-Schema-Test-Suite), for those of the suite. Whatever is taken is
walked through at random, and jsonschema judges the texts; the suite's wrong values must not be
taken. Keeps the figures for docs/generate.py; without the folder, those of the suite stay as they
were.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.rules.selections import select
from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import JsonSchema
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.structured_output import LoadedConstraint
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.compiler import ConstraintCompiler
from dovetail_plugins.bench.machine import machine_facts
from dovetail_testing.random_walks import Wanderer, follows

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from support.schema_judge import Judge  # noqa: E402

FIGURES = ROOT / "docs" / "reference" / "structured_output.json"
KIND = "structured_output_backend"
WHERE = "schema"
AUTO = "auto"
WALKS = 20
LIMIT_S = 4.0
COMPILE_LIMIT_S = 10.0
SUITE = "JSON-Schema-Test-Suite"
CORPORA = ("wild", "published")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A schema, and values whose verdicts are known."""

    schema: Any
    values: tuple[tuple[Any, bool], ...] = ()


@dataclass(slots=True, kw_only=True)
class Figures:
    """What one backend made of one group of schemas."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as they are kept."""
        return {**dict(sorted(self.counts.items())), "refused": dict(sorted(self.refused.items()))}


def groups(suite: Path | None) -> dict[str, list[Case]]:
    """Return name -> cases: our own, the drafts' metaschemas, those of the suite."""
    found: dict[str, list[Case]] = {}
    for path in sorted((ROOT / "tests" / "data" / "schemas").glob("*.json")):
        found[path.stem] = [Case(schema=s) for s in json.loads(path.read_text()).values()]
    for folder in CORPORA:
        for path in sorted((ROOT / "tests" / "data" / "schemas" / folder).glob("*.json")):
            cases = json.loads(path.read_text()).values()
            found[f"{folder}/{path.stem}"] = list(map(wild_case, cases))
    found["metaschemas of the drafts"] = [Case(schema=schema) for schema in metaschemas()]
    if suite is not None:
        paths = [*sorted(suite.glob("*.json")), *sorted(suite.glob("optional/format/*.json"))]
        found[SUITE] = [case for path in paths for case in suite_cases(path)]
    return found


def wild_case(found: dict[str, Any]) -> Case:
    """Return a schema of a corpus; its values are valid."""
    return Case(schema=found["schema"], values=tuple((value, True) for value in found["valid"]))


def metaschemas() -> Iterator[Any]:
    """Yield the schemas of schemas that the package jsonschema_specifications has."""
    package = importlib.util.find_spec("jsonschema_specifications")
    assert package is not None and package.origin is not None
    for path in sorted((Path(package.origin).parent / "schemas").rglob("*")):
        if path.is_file() and path.suffix in ("", ".json"):
            yield json.loads(path.read_text(encoding="utf-8"))


def suite_cases(path: Path) -> Iterator[Case]:
    """Yield the cases of one file of the suite."""
    for group in json.loads(path.read_text(encoding="utf-8")):
        values = tuple((test["data"], bool(test["valid"])) for test in group["tests"])
        yield Case(schema=group["schema"], values=values)


def spec_of(name: str) -> StructuredOutputSpec:
    """Return a spec of one backend, or of all ("auto"), over the demo model's vocabulary."""
    names = registry.names(KIND) if name == AUTO else [name]
    return StructuredOutputSpec(
        tokenizer=select("tokenizer", "hf"),
        tokenizer_path=str(DEMO_PATH),
        eos_ids=(2041,),
        vocab_size=2048,
        backends=tuple(select(KIND, one) for one in names),
        compile_limit_s=COMPILE_LIMIT_S,
    )


async def measure(name: str, found: dict[str, list[Case]], limit_s: float) -> dict[str, Figures]:
    """Return group -> figures of one backend, asked as the server asks it."""
    compiler, table = ConstraintCompiler(spec_of(name)), ConstraintCache(spec_of(name))
    requested = None if name == AUTO else name
    made = {group: Figures() for group in found}
    for group, cases in found.items():
        for number, case in enumerate(cases):
            figures = made[group]
            figures.counts["schemas"] += 1
            if not isinstance(case.schema, dict | bool) or case.schema is False:
                figures.refused["(a schema that is not an object)"] += 1
                continue
            constraint = JsonSchema({} if case.schema is True else case.schema)
            try:
                compiled = await compiler.compile(constraint, where=WHERE, backend=requested)
            except RequestError as error:
                figures.refused[reason(error)] += 1
                continue
            figures.counts["taken"] += 1
            loaded = table.prepare(compiled).constraints[0]
            walks(loaded, case.schema, table, figures, seed=number, limit_s=limit_s)
            verdicts(loaded, case, table, figures)
    await compiler.close()
    return made


def reason(error: RequestError) -> str:
    """Return the keyword that a refusal points at, or what it says without names and numbers."""
    parts = str(error.where).removeprefix(WHERE).split("/")[1:]
    if "patternProperties" in parts and error.code == "invalid_grammar":
        return "patternProperties"
    if parts:
        return parts[-1].replace("~1", "/").replace("~0", "~")
    if "patternProperties" in error.what:
        return "patternProperties"
    if "nsatisfiable" in error.what:
        return "(no value meets the schema)"
    if "to compile" in error.what:
        return f"(compiling took more than {COMPILE_LIMIT_S:g} s)"
    said = re.sub(r"\d+", "N", re.sub(r"(['\"`]).*?\1", "...", error.what.split("\n")[0]))
    return f"({said.split(':')[0].rstrip('.')[:70]})"


def walks(
    loaded: LoadedConstraint,
    schema: Any,
    table: ConstraintCache,
    figures: Figures,
    *,
    seed: int,
    limit_s: float,
) -> None:
    """Walk through a schema at random; count and print what breaks it. Mutates: figures"""
    judge, wanderer = Judge(schema), Wanderer(table.vocabulary)
    chance, end_s = random.Random(seed), time.monotonic() + limit_s
    for _ in range(WALKS):
        if time.monotonic() > end_s:
            break
        walk = wanderer.walk(loaded.matcher(), chance)
        if walk.end == "long":
            continue
        text = wanderer.written(walk.token_ids)
        fault = judge.fault(text) if walk.end == "end" else f"the walk ended: {walk.end}"
        figures.counts["answers"] += 1
        if fault is not None:
            figures.counts["wrong"] += 1
            print(f"WRONG {schema}\n    {text!r}\n    {fault}", flush=True)


def verdicts(
    loaded: LoadedConstraint, case: Case, table: ConstraintCache, figures: Figures
) -> None:
    """Offer the values whose verdicts are known, their members also by name. Mutates: figures"""
    for value, is_right in case.values:
        texts = {json.dumps(value, ensure_ascii=False, sort_keys=s).encode() for s in (False, True)}
        is_taken = any(follows(loaded.matcher(), table.vocabulary, text) for text in texts)
        figures.counts["right values" if is_right else "wrong values"] += 1
        figures.counts["right values taken"] += is_right and is_taken
        figures.counts["wrong values taken"] += is_taken and not is_right
        if is_taken and not is_right:
            print(f"WRONG {case.schema}\n    takes {value!r}", flush=True)


def machine() -> str:
    """Return the processor's name and its cores."""
    facts = machine_facts()
    return f"{facts['cpu']}, {os.cpu_count()} cores"


def limits(chosen: argparse.Namespace) -> str:
    """Return how long the walks of a schema were."""
    return f"at most {WALKS} walks and {chosen.limit_s:g} s for each schema"


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--backend", action="append")
    parser.add_argument("--group", action="append", help="only this group; others stay as they are")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for the walks of a schema")
    parser.add_argument("--out", type=Path, default=FIGURES)
    chosen = parser.parse_args()
    every = groups(chosen.suite)
    found = {name: every[name] for name in chosen.group or every}
    for name in chosen.backend or [*registry.names(KIND), AUTO]:
        begun_s = time.monotonic()
        made = asyncio.run(measure(name, found, chosen.limit_s))
        kept = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        for group, figures in made.items():
            print(f"{name}, {group}: {figures.as_json()}", flush=True)
            kept.setdefault("schemas", {}).setdefault(group, {})[name] = figures.as_json()
        kept.setdefault("measured", {})[name] = f"{date.today()}, {limits(chosen)}, {machine()}"
        chosen.out.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - begun_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
