"""The kit's pytest plugin: every clause runs once per registered plugin of its kind.

A contract class says `kind = "..."` ("*" for all); its clauses take the fixture `plugin` (the
loaded class or Value) or `entry` (its metadata). Loaded with -p, never by itself: a serving package
is often installed next to unrelated test suites.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from dovetail import registry
from dovetail.errors import ConfigError, UnavailablePlugin
from dovetail.interfaces.plugin import Value
from dovetail.registry import KINDS, Entry
from dovetail_testing.contract import SECOND_FILES, clause_name, gates_of

FEW_MODULES, MANY_MODULES = 20, 200
MANY_PLUGINS = 20
OPTION = "--dovetail-plugin"
CLAUSE_OPTION = "--dovetail-clause"
SAMPLE_OPTION = "--dovetail-sample"
WORKER = "PYTEST_XDIST_WORKER"
FRESH = "fresh"
"""Name of the fixture that imports a plugin in a new process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --dovetail-plugin KIND[:NAME], --dovetail-clause CLAUSE and --dovetail-sample N."""
    parser.addoption(
        OPTION,
        action="append",
        default=[],
        metavar="KIND[:NAME]",
        help="check only these plugins; NAME may be name@distribution, module:Class, file.py:Class",
    )
    parser.addoption(
        CLAUSE_OPTION,
        action="append",
        default=[],
        metavar="CLAUSE",
        help="run only these clauses, with their parameters or without",
    )
    parser.addoption(
        SAMPLE_OPTION,
        type=int,
        default=1,
        metavar="N",
        help=f"if no plugin is chosen, run a clause on every N-th plugin of a kind that has over "
        f"{MANY_PLUGINS}; other clauses have others",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a contract class's clauses once per chosen plugin of its kind."""
    kind = getattr(metafunc.cls, "kind", None)
    if kind is None or "entry" not in metafunc.fixturenames:
        return
    words = tuple(metafunc.config.getoption(OPTION))
    entries = [entry for entry in chosen(words) if kind in ("*", entry.kind)]
    if not words:
        shift = crc32((FRESH if kind == "*" else metafunc.function.__name__).encode())
        entries = _sample(entries, metafunc.config.getoption(SAMPLE_OPTION), shift)
    names = [f"{entry.kind}:{entry.id}" if kind == "*" else entry.id for entry in entries]
    metafunc.parametrize("entry", entries, ids=names, scope="class")


def _sample(entries: Sequence[Entry], every: int, shift: int) -> list[Entry]:
    """Return each `every`-th entry of kinds with many plugins, and all entries of other kinds."""
    found: list[Entry] = []
    for _, group in groupby(entries, key=lambda entry: entry.kind):
        of_kind = list(group)
        found += of_kind[shift % every :: every] if len(of_kind) > MANY_PLUGINS else of_kind
    return found


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the contract files of kinds that were not chosen: importing them takes time."""
    stem = collection_path.stem.removeprefix("test_")
    kind = SECOND_FILES.get(stem, stem)
    if collection_path.parent.name != "contracts" or kind not in KINDS:
        return None
    chosen_kinds = {word.partition(":")[0] for word in config.getoption(OPTION)}
    return True if chosen_kinds and kind not in chosen_kinds else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the clauses that were not chosen, and those of kinds without a chosen plugin."""
    clauses = frozenset(config.getoption(CLAUSE_OPTION))
    left_out = [item for item in items if not _is_chosen(item, clauses)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_chosen(item, clauses)]


def pytest_collection() -> None:
    """Look for no garbage while tests are collected: a million objects are made, and live to the
    end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was collected out of later collections of garbage, for the same reason: every
    engine that opens or closes in this process would walk all of it."""
    gc.freeze()
    _Kept.num_modules = len(sys.modules)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Exclude imported modules from garbage collections, for example those of transformers' models.
    Modules shared by the tests of a file are collected again when the file has ended."""
    yield
    num_new = len(sys.modules) - _Kept.num_modules
    is_last = nextitem is None or nextitem.path != item.path
    _Kept.is_shared = not is_last and (_Kept.is_shared or _shares(item))
    is_over = is_last and _Kept.holds_shared
    if is_over:
        gc.unfreeze()
    if is_over or num_new > (MANY_MODULES if _Kept.is_shared else FEW_MODULES):
        _freeze()
        _Kept.holds_shared = _Kept.is_shared


def pytest_sessionfinish() -> None:
    """Let collections see everything again: some plugins' last words ask what refers to what. Of
    several processes those that run tests only end, for which pytest collects garbage twice."""
    if WORKER not in os.environ:
        gc.unfreeze()


class _Kept:
    """State of the exclusion from collections: how many modules there were, and whether objects
    shared by this file's tests are excluded too."""

    num_modules = 0
    is_shared = False
    holds_shared = False


def _shares(item: pytest.Item) -> bool:
    """Return whether fixtures of a test live longer than it does, and end before the session."""
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = [] if fixtures is None else fixtures.name2fixturedefs.values()
    return any(one.scope not in ("function", "session") for some in definitions for one in some)


def _freeze() -> None:
    gc.collect()
    gc.freeze()
    _Kept.num_modules = len(sys.modules)


def _is_chosen(item: pytest.Item, clauses: frozenset[str]) -> bool:
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec else {}
    if "entry" not in parameters:
        return not clauses
    if not isinstance(parameters["entry"], Entry):
        return False
    name = clause_of(item)
    return not clauses or name in clauses or name.partition("[")[0] in clauses


@cache
def chosen(words: Sequence[str]) -> list[Entry]:
    """Return the entries that KIND and KIND:NAME words name (none: all), each target once."""
    entries: list[Entry] = []
    for word in words or list(registry.KINDS):
        kind, _, spec = word.partition(":")
        entries += [registry.find(kind, spec)] if spec else registry.entries(kind)
    first: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        first.setdefault((entry.kind, entry.target), entry)
    return list(first.values())


def entries_for(fixture: str, request: pytest.FixtureRequest) -> list[Entry]:
    """Return the entries whose clauses use a fixture in this run."""
    items = [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
    return list(dict.fromkeys(item.callspec.params["entry"] for item in items))  # type: ignore[attr-defined]


@pytest.fixture
def plugin(request: pytest.FixtureRequest, entry: Entry) -> Any:
    """Return the loaded plugin; skip if it is unavailable or does not claim the clause.

    A plugin that cannot be loaded fails the clauses that load it, and skips all others.
    """
    try:
        loaded = registry.admin.load_entry(entry)
    except UnavailablePlugin as error:
        pytest.skip(f"unavailable here: {error}")
    except ConfigError as error:
        pytest.skip(f"cannot be loaded: {error}")
    if isinstance(loaded, Value):
        return loaded
    for word, claimed in gates_of(request.function):
        if (word in loaded.capabilities) is not claimed:
            pytest.skip(f'{"does not claim" if claimed else "claims"} "{word}"')
    _expect_failure(request.node, loaded.expected_failures)
    return loaded


@pytest.fixture(autouse=True)
def _note_clause(request: pytest.FixtureRequest) -> None:
    """Write plugin and clause into the report, for summaries and JUnit files."""
    callspec = getattr(request.node, "callspec", None)
    found = callspec.params.get("entry") if callspec else None
    if isinstance(found, Entry):
        request.node.user_properties.append(("dovetail_plugin", f"{found.kind}:{found.id}"))
        request.node.user_properties.append(("dovetail_clause", clause_of(request.node)))
        promise = " ".join((request.function.__doc__ or "").split("\n\n")[0].split())
        request.node.user_properties.append(("dovetail_promise", promise))


def clause_of(item: Any) -> str:
    """Return a test's clause name: its function and its parameters except the plugin."""
    entry = item.callspec.params["entry"]
    parts = [part for part in (f"{entry.kind}:{entry.id}", entry.id) if part in item.callspec.id]
    rest = item.callspec.id.replace(parts[0], "").strip("-") if parts else item.callspec.id
    return clause_name(item.originalname, rest)


def _expect_failure(item: Any, expected: Any) -> None:
    reason = expected.get(clause_of(item))
    if reason is not None:
        item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
