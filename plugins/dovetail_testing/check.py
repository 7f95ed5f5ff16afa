"""Runs the conformance kit from Python and sums it up per plugin. Needs pytest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ConfigError

_INI = Path(__file__).with_name("kit.ini")
FEWEST_WORDS = 3
"""Of a message that says something by itself."""
_WORDS = {"passed": "passed", "failed": "failed", "skipped": "not run", "xfailed": "known faults"}


@dataclass(kw_only=True, eq=False)
class ClauseResults:
    """A pytest plugin that keeps what every clause came to."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a clause's outcome. Mutates: self"""
        facts = dict(report.user_properties)
        if "dovetail_plugin" not in facts:
            return
        if report.when == "call" or report.outcome != "passed":
            self.rows.append(
                {
                    "plugin": facts["dovetail_plugin"],
                    "clause": facts["dovetail_clause"],
                    "promise": facts.get("dovetail_promise", ""),
                    "outcome": _outcome(report),
                    "detail": _cause(report) if report.failed else _reason(report),
                    "traceback": str(report.longrepr) if report.failed else "",
                }
            )


def check(
    words: Sequence[str],
    *,
    clauses: Sequence[str] = (),
    as_json: bool = False,
    shows_traceback: bool = False,
) -> int:
    """Run the clauses (none: all) on the plugins named KIND or KIND:NAME (none: all).

    Returns 0: all passed, 1: a clause failed, other: pytest's own status. Prints a report: for each
    failed clause, what it promises and what was found instead, and a line for each plugin.
    """
    results = ClauseResults()
    arguments = ["-c", str(_INI), "-p", "dovetail_testing.plugin"]
    for word in words:
        arguments += ["--dovetail-plugin", word]
    for clause in clauses:
        arguments += ["--dovetail-clause", clause]
    arguments += ["--pyargs", "dovetail_testing.contracts"]
    with redirect_stdout(StringIO()) if as_json else nullcontext():
        status = int(pytest.main(arguments, plugins=[results]))
    if clauses and not results.rows:
        raise ConfigError(
            f"no plugin that was chosen has a clause named {' or '.join(clauses)}.",
            where="dovetail plugins check --clause",
            fix="leave it out to see the names of all in a report (--json).",
        )
    if as_json:
        print(json.dumps({"status": status, "clauses": results.rows}, indent=2))
    else:
        print("\n".join([*_faults(results.rows, shows_traceback), *_summary(results.rows)]))
    return status


def _faults(rows: Sequence[dict[str, Any]], shows_traceback: bool) -> list[str]:
    """Return each failed clause in a few lines: its name, its promise, and what was found."""
    lines: list[str] = []
    for row in rows:
        if row["outcome"] == "failed":
            lines += [f"{row['plugin']} fails {row['clause']}", f"  promised: {row['promise']}"]
            lines += [f"  found:    {row['detail']}"]
            lines += [f"  {line}" for line in row["traceback"].splitlines() if shows_traceback]
    return lines


def _cause(report: pytest.TestReport) -> str:
    """Return why a clause failed: the message of its assertion, or the error that was raised."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr)
    text = str(crash.message).removeprefix("AssertionError: ")
    said = text.removeprefix("assert ").partition("\nassert ")[0].partition("\n +")[0]
    said = " ".join(said.split())
    if not text.startswith("assert ") and len(said.split()) >= FEWEST_WORDS:
        return said
    statement = _statement(report)
    if statement.startswith("assert "):
        return f"`{statement.removeprefix('assert ')}` is not so, for it was: {said}."
    return f"`{statement}` ended with {said}."


def _statement(report: pytest.TestReport) -> str:
    """Return the statement of the kit that failed, on one line."""
    entries = report.longrepr.reprtraceback.reprentries  # type: ignore[union-attr]
    lines = [line.lstrip("> ") for line in entries[-1].lines]
    known = [line.strip() for line in lines if not line.startswith(("E ", "E\t"))]
    marks = " ^~"
    return " ".join(line for line in known if line.strip(marks))


def _summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["plugin"], Counter())[row["outcome"]] += 1
    return [
        f"{plugin}: " + ", ".join(f"{n} {_WORDS[word]}" for word, n in sorted(counter.items()))
        for plugin, counter in sorted(counts.items())
    ]


def _outcome(report: pytest.TestReport) -> str:
    if report.skipped and getattr(report, "wasxfail", None) is not None:
        return "xfailed"
    return str(report.outcome)


def _reason(report: pytest.TestReport) -> str:
    known = getattr(report, "wasxfail", None)
    if known is not None:
        return str(known)
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
