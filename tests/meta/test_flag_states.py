"""Every flag, choice and variable of the reference is supported, deprecated or unsupported."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.config.compat.deprecated_flags import MAPPED, deprecated_flags, newer_flags
from dovetail.config.compat.unsupported_flags import UNSUPPORTED_FLAGS, UnsupportedFlag
from dovetail.config.config import Config, flags
from dovetail.config.parse.environment import OWN, variable_of
from dovetail.config.parse.foreign_variables import foreign_variables
from dovetail.config.report.describe import state_of
from dovetail.config.rules.checks import check_supported
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError
from dovetail.registry.unsupported_names import UNSUPPORTED_NAMES
from support.flag_tests import FLAG_TESTS

TESTS = Path(__file__).resolve().parents[1]
REFERENCE = TESTS / "reference"
PARSER_OWN = {"--config", "--help"}
"""Flags that the parser takes itself."""
TASKS = "task"
KIND_OF = {
    "executor": "executor",
    "platform": "platform",
    "pooling_type": "pooler",
    "prefix_hash_algo": "hash_algorithm",
    "log_level": "uvicorn_log_level",
    "spec_acceptance_method": "acceptance",
    "spec_method": "drafter",
    "tokenizer_mode": "tokenizer",
}
"""The reference's word for a group of choices -> the kind here."""
NOT_CHOICES = {"bench_type", "cmake_build_type", "flash_attn_version", "help_keyword", "subcommand"}
NOT_CHOICES |= {"model_hub", "worker_multiproc_method"}
"""Groups that are no plugin kind: subcommands, help topics, values of variables."""


VALUE_TYPES = {"choice": "str", "path": "str", "human_int": "int"}
"""The reference's word for a type -> the value type here, where these differ."""
SEVERAL_TYPES = {"--pt-load-map-location"}
"""Flags that take a word as well as an object."""
OWN_DEFAULTS = {
    "--compilation-config": "levels are ours; without one steps are captured where that helps",
    "--enable-auto-tool-choice": "a request with tools never fails because a flag is missing",
    "--enable-chunked-prefill": "theirs is unset, which means on",
    "--enable-prefix-caching": "theirs is unset, which means on",
    "--eplb-config": "unset keys have those defaults",
    "--enable-prompt-tokens-details": "programs that count what they saved need no flag",
    "--ignore-patterns": "theirs is unset, which means the same pattern",
    "--max-long-partial-prefills": "unset: prompts in parts are as many as fit",
    "--max-num-partial-prefills": "unset: prompts in parts are as many as fit",
    "--model": "the bundled demo model needs no download",
    "--scheduler-cls": "a class path that is accepted for the scheduler named here",
}
"""Flags whose default is not that of the newest generation -> why."""


def facts(name: str) -> list[dict[str, Any]]:
    """Return the rows of a reference file."""
    rows: list[dict[str, Any]] = json.loads((REFERENCE / f"{name}.json").read_text())
    return rows


def every_flag() -> dict[str, Flag]:
    newer = [one.flag for one in newer_flags().values()]
    every = (*flags().values(), *deprecated_flags().values(), *newer)
    return {flag.spelling: flag for flag in every}


ROWS = [row for row in facts("cli_flags") if row["flag"] not in PARSER_OWN]


def test_the_tables_have_all_219_flags() -> None:
    assert len(facts("cli_flags")) == 219
    assert not {row["flag"] for row in ROWS} - set(every_flag())
    assert set(MAPPED) == set(deprecated_flags())
    assert not set(newer_flags()) & ({*MAPPED, *flags()})
    assert not set(UNSUPPORTED_FLAGS) - set(flags())
    assert not set(deprecated_flags()) & set(flags())
    assert not set(newer_flags()) & {row["flag"][2:].replace("-", "_") for row in ROWS}


def test_every_flag_of_the_newest_vllm_is_known() -> None:
    rows = [row for row in facts("vllm_flags") if row["flag"] not in PARSER_OWN]
    spellings = {spelling for flag in every_flag().values() for spelling in flag.spellings}
    assert len(rows) == 319
    assert {name for row in rows for name in (row["flag"], *row["aliases"])} <= spellings
    assert {one.flag.spelling for one in newer_flags().values()} <= {row["flag"] for row in rows}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["flag"])
def test_a_flag_has_its_aliases_and_choices(row: dict[str, Any]) -> None:
    flag = every_flag()[row["flag"]]
    assert set(row["aliases"]) <= set(flag.spellings)
    if row["negatable"]:
        assert flag.value_type == "bool"
    if row["choices"]:
        assert flag.meta.kind in registry.KINDS
    if flag.meta.kind:
        assert flag.meta.kind in registry.KINDS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["flag"])
def test_a_flag_has_the_references_type_and_default(row: dict[str, Any]) -> None:
    flag = every_flag()[row["flag"]]
    value_type = VALUE_TYPES.get(row["kind"], row["kind"])
    assert flag.value_type == value_type or row["flag"] in SEVERAL_TYPES
    if flag.name in deprecated_flags():
        return  # unset until somebody gives it: it has no setting of its own
    nothing = (None, "", False, [], {})
    theirs, ours = row["default_latest"], _plain(flag.default)
    is_same = ours in (theirs, {flag.meta.key: theirs}) or (theirs in nothing and ours in nothing)
    assert is_same != (row["flag"] in OWN_DEFAULTS), f"{theirs!r} there, {ours!r} here"


@pytest.mark.parametrize("name", ["video_pruning_rate", *UNSUPPORTED_FLAGS])
def test_an_unsupported_flag_says_what_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is supported stands for those of a newer reference, until a row is needed."""
    flag = flags()[name]
    row = UNSUPPORTED_FLAGS.get(name, UnsupportedFlag("media_answers", passing=(0.0,)))
    monkeypatch.setitem(UNSUPPORTED_FLAGS, name, row)
    assert state_of(flag) == ("unsupported", row.missing)
    assert row.missing.endswith(".") and row.fix.endswith(".")
    check_supported(Config.from_fields({name: _plain(flag.default)}))
    for value in row.passing:
        check_supported(Config.from_fields({name: value}))
    with pytest.raises(ConfigError) as caught:
        check_supported(Config.from_fields({name: _other(flag)}))
    assert caught.value.what == row.missing
    assert caught.value.where == flag.spelling


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _other(flag: Flag) -> Any:
    """Return a value that asks for something."""
    match flag.value_type:
        case "bool":
            # A row may let the other value pass as well: then nothing asks for anything.
            return not flag.default
        case "int":
            return 7
        case "float":
            return 0.5
        case "list":
            return ["one"]
        case "json":
            return {"one": 1}
        case _:
            return "something"


def test_every_name_of_every_choice_is_accounted_for() -> None:
    silent = []
    for row in facts("choices"):
        kind = KIND_OF.get(row["kind"], row["kind"])
        if kind in NOT_CHOICES:
            continue
        assert kind in registry.KINDS, kind
        silent += [f"{kind}:{name}" for name in row["names"] if not _is_known(kind, name)]
    assert silent == []


def _is_known(kind: str, name: str) -> bool:
    if name in registry.names(kind) or name in UNSUPPORTED_NAMES.get(kind, {}):
        return True
    if name == "auto" and registry.KINDS[kind].auto:
        return True
    return kind == TASKS or (kind, name) == ("scheduler", "vllm.core.scheduler.Scheduler")


def test_no_name_is_both_registered_and_unavailable() -> None:
    both = [
        f"{kind}:{name}"
        for kind, names in UNSUPPORTED_NAMES.items()
        for name in names
        if name in registry.names(kind)
    ]
    assert both == []
    assert not set(UNSUPPORTED_NAMES) - set(registry.KINDS)


def test_every_variable_of_the_reference_is_known() -> None:
    known = {*foreign_variables(), *OWN, *map(variable_of, flags().values())}
    assert sorted({row["name"] for row in facts("env_vars")} - known) == []


SUPPORTED = sorted(name for name, flag in flags().items() if state_of(flag)[0] == "supported")


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_flag_has_a_proof(name: str) -> None:
    places = FLAG_TESTS[name]
    texts = [text_of(place) for place in places]
    words = rf"(?<!\w){name}(?!\w)|--(no-)?{name.replace('_', '-')}(?![\w-])"
    assert re.search(words, texts[0]), f"{places[0]} does not mention {name}"


def test_proofs_are_of_supported_flags_alone() -> None:
    assert not set(FLAG_TESTS) - set(SUPPORTED)


@cache
def text_of(place: str) -> str:
    """Return the source of a test with all that it names in its own file."""
    path, _, function = place.partition("::")
    source = (TESTS / path).read_text(encoding="utf-8")
    defined = {}
    for node in ast.parse(source).body:
        for name in defined_names(node):
            defined[name] = node
    assert function in defined, f"there is no {place}"
    wanted, seen = [function], set[str]()
    while wanted:
        name = wanted.pop()
        if name in defined and name not in seen:
            seen.add(name)
            wanted += names_in(defined[name])
    lines = source.splitlines()
    return "\n".join(whole_text(lines, defined[name]) for name in sorted(seen))


def defined_names(node: ast.stmt) -> list[str]:
    """Return what a statement of a module gives names to."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def names_in(node: ast.AST) -> list[str]:
    """Return every name that is used, fixtures among a test's arguments too."""
    used = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    return used + [inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)]


def whole_text(lines: Sequence[str], node: ast.stmt) -> str:
    """Return a statement's lines, decorators included."""
    first = min(part.lineno for part in (*getattr(node, "decorator_list", ()), node))
    return "\n".join(lines[first - 1 : node.end_lineno])


def test_the_states() -> None:
    assert {state_of(flag)[0] for flag in every_flag().values()} == {
        "supported",
        "deprecated",
        *("mapped", "taken", "refused"),
        *(["unsupported"] if UNSUPPORTED_FLAGS else []),
    }


def test_no_row_of_known_names_is_empty() -> None:
    assert [kind for kind, names in UNSUPPORTED_NAMES.items() if not names] == []
