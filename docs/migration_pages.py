"""The pages for those who come from vLLM: what is the same, has another name, or is absent.

The names stand in tests/reference; what becomes of each is asked of dovetail itself, so that a
feature that is added changes the page with it. `ollama_page` has the page for Ollama.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[1] / "tests" / "reference"
NEWEST = "0.33.0"
"""The version of vLLM whose flags tests/reference/vllm_flags.json lists."""
UNSET_MEANS = {"--host": "every address of the machine"}
"""Flag whose default is unset here and in vLLM -> what that means there, where it differs."""
VLLM_HEAD = """\
# Coming from vLLM

{note}

`dovetail serve` takes the command line of `vllm serve`, its variables, its requests and the names
of its metrics. Nothing is dropped silently: what dovetail cannot do is an error that says so.

1. Replace the command: `vllm serve MODEL ...` becomes `dovetail serve MODEL ...`, with the same
   flags, YAML file and `VLLM_*` variables.
2. `dovetail config check MODEL ...` with these flags says, before anything is loaded, which of them
   ask for something that is not there. `dovetail config show --origin MODEL ...` shows every
   setting and where it comes from. `dovetail config translate -- vllm serve MODEL ...` prints the
   command line in today's names, and what changes.
3. Clients stay as they are: the paths and fields are the same, the extra ones of vLLM too.
4. Dashboards stay as they are: metrics have their `vllm:` names beside dovetail's.
5. A parser that came with a model card is loaded as it is:
   [bring a parser written for vLLM](../how_to/bring_a_parser_written_for_vllm.md).

In Python, `from dovetail import LLM, SamplingParams` takes the place of `from vllm import ...`;
[llm.md](llm.md) lists what differs.

Compared with {flags} flags, {routes} paths, {metrics} metrics and {variables} variables that the
documentation of `vllm serve` lists. The reasons are those that the errors give.
"""


@cache
def facts(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of names of another server."""
    rows: list[dict[str, Any]] = json.loads((REFERENCE / f"{name}.json").read_text("utf-8"))
    return rows


def vllm_page(note: str) -> str:
    """Return the page for those who come from vLLM."""
    counts = {
        "flags": "cli_flags",
        "routes": "routes",
        "metrics": "metrics",
        "variables": "env_vars",
    }
    numbers = {word: len(facts(name)) for word, name in counts.items()}
    parts = [VLLM_HEAD.format(note=note, **numbers)]
    parts += [_commands(), _flags(), _newer_flags(), _choices()]
    parts += [_recipes(), _routes(), _fields(), _metrics(), _variables()]
    return "\n".join(parts)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    heads = list(columns)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(names: Iterable[str]) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def _commands() -> str:
    from dovetail import registry
    from dovetail_plugins.bench.settings import GROUPS_BY_COMMAND

    commands = registry.names("command")
    names = next(row["names"] for row in facts("choices") if row["kind"] == "subcommand")
    kinds = next(row["names"] for row in facts("choices") if row["kind"] == "bench_type")
    missing = [n for n in names if n not in commands] + [
        f"bench {kind}" for kind in kinds if kind not in GROUPS_BY_COMMAND
    ]
    same = [f"dovetail {name}" for name in names if name in commands and name != "bench"]
    same += [f"dovetail bench {kind}" for kind in kinds if kind in GROUPS_BY_COMMAND]
    more = [name for name in commands if name not in names]
    absent = f"Absent: {code(missing)}. " if missing else ""
    return f"## Commands\n\nThe same: {code(same)}. {absent}Only here: {code(more)}.\n"


def _flags() -> str:
    """Return the flags by what becomes of them, those that need attention first."""
    from dovetail.config.compat.deprecated_flags import deprecated_flags
    from dovetail.config.config import flags
    from dovetail.config.report.describe import state_of

    ours = {flag.spelling: flag for flag in (*flags().values(), *deprecated_flags().values())}
    by_state: dict[str, list[tuple[str, str]]] = defaultdict(list)
    own_default = []
    for row in facts("cli_flags"):
        name = row["flag"]
        if name not in ours:  # --config and --help, which the parser takes itself
            by_state["supported"].append((name, ""))
            continue
        state, reason = state_of(ours[name])
        by_state[state].append((name, reason))
        is_same = _is_same_default(row["default_latest"], ours[name]) and name not in UNSET_MEANS
        if state == "supported" and not is_same:
            own_default.append(_default_row(row, ours[name]))
    translated = sorted(by_state["deprecated"] + by_state["mapped"])
    return "\n".join(
        [
            "## Flags\n",
            f"{len(by_state['supported'])} are the same, {len(translated)} are translated with a "
            f"line in the log, {len(by_state['unsupported'])} are refused unless they ask for "
            "nothing. [flags.md](flags.md) describes each.\n",
            "### With another default\n",
            table(["flag", "in vLLM", "here"], own_default),
            "### Translated\n",
            table(["flag", "here"], ((f"`{n}`", reason) for n, reason in translated)),
            "### Absent\n",
            table(["why", "flags"], _by_reason(by_state["unsupported"])),
            "### The same\n",
            f"{code(sorted(name for name, _ in by_state['supported']))}\n",
        ]
    )


def _newer_flags() -> str:
    """Return the flags of the newest version by what becomes of them."""
    from dovetail.config.compat.deprecated_flags import NOTHING, newer_flags

    rows = facts("vllm_flags")
    newer = {one.flag.spelling: one.row for one in newer_flags().values()}
    by_state: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        name = row["flag"]
        found = newer.get(name)
        state = "honoured" if found is None else found.state
        text = "" if found is None else found.today.removeprefix(NOTHING)
        fix = "" if found is None or found.instead is None else f"; {found.instead}"
        by_state[state].append((name, f"{text}{fix}."))
    older = {row["flag"] for row in facts("cli_flags")}
    honoured = [name for name, _ in by_state["honoured"] if name not in older]
    return "\n".join(
        [
            "## Newer flags\n",
            f"Version {NEWEST} of `vllm serve` has {len(rows)} flags. "
            f"{len(by_state['honoured'])} are flags here or older names (above). "
            f"{len(by_state['mapped'])} are other names of flags here. {len(by_state['taken'])} "
            f"are taken and change nothing. {len(by_state['refused'])} are refused unless "
            "their value is the default, empty or `auto`. The log has a line for each that is "
            "mapped, taken or refused. "
            "`dovetail serve --help` does not list them, `--help=FLAG` describes one.\n",
            f"Flags here that came after those above: {code(honoured)}.\n",
            table(["other name", "here"], ((f"`{n}`", t) for n, t in by_state["mapped"])),
            table(["why it changes nothing", "flags"], _by_reason(by_state["taken"])),
            table(["why it is refused; what to use", "flags"], _by_reason(by_state["refused"])),
        ]
    )


def _is_same_default(theirs: Any, flag: Any) -> bool:
    nothing = (None, "", False, [], {})
    ours = list(flag.default) if isinstance(flag.default, tuple) else flag.default
    return ours in (theirs, {flag.meta.key: theirs}) or (theirs in nothing and ours in nothing)


def _default_row(row: Mapping[str, Any], flag: Any) -> tuple[str, str, str]:
    from dovetail.config.report.describe import default_text, value_text

    theirs = row["default_latest"]
    if isinstance(theirs, dict) and len(theirs) > 5:
        told = f"an object with {len(theirs)} keys"
    else:
        told = f"`{value_text(theirs)}`" if theirs is not None else "unset"
        told = UNSET_MEANS.get(row["flag"], told)
    ours = default_text(flag)
    return f"`{row['flag']}`", told, ours if flag.meta.default_note else f"`{ours}`"


def _by_reason(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return (reason, names as code), the reason with most names first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, reason in pairs:
        found[reason].append(name)
    order = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [(_begun(reason), code(sorted(names))) for reason, names in order]


def _begun(sentence: str) -> str:
    """Return a sentence with a capital in front, but for the name that has none."""
    return sentence if sentence.startswith("dovetail") else sentence[:1].upper() + sentence[1:]


def _choices() -> str:
    """Return the values of flags that cannot be chosen here."""
    from dovetail import registry
    from dovetail.registry.unsupported_names import UNSUPPORTED_NAMES, why_unsupported

    rows = []
    for kind, names in sorted(UNSUPPORTED_NAMES.items()):
        flags = code(registry.KINDS[kind].flags) or f"`{kind}`"
        reasons = _by_reason((name, f"{why_unsupported(kind, name)}.") for name in names)
        rows += [(flags, names, reason) for reason, names in reasons]
    return (
        "## Values of flags\n\nEvery other name that the documentation lists can be chosen.\n\n"
        + table(["flag", "values that are absent", "why"], rows)
    )


def _recipes() -> str:
    """Return how many command lines of published recipes start, and why others do not."""
    lines = (REFERENCE / "vllm_recipes.tsv").read_text("utf-8").splitlines()
    models = {line.partition("\t")[0] for line in lines}
    refused = facts("vllm_recipes_refused")
    started = len(lines) - sum(row["lines"] for row in refused)
    rows = ((f"`{row['where']}`", row["why"], str(row["lines"])) for row in refused)
    return (
        "## Published recipes\n\nvLLM publishes recipes: a model, and the flags to serve it with. "
        f"Of {len(lines)} command lines for {len(models)} models, {started} pass every check of "
        "flags and their values that needs no model, which says nothing of the model itself. "
        "The others are refused:\n\n" + table(["where", "what the error says", "lines"], rows)
    )


def our_routes() -> dict[str, Any]:
    """Return path -> the first route of it, of the families that come with dovetail."""
    from dovetail.server.families import build_apis

    routes: dict[str, Any] = {}
    for api in build_apis().values():
        for route in api.routes:
            routes.setdefault(route.path, route)
    return routes


def route_words(path: str, route: Any) -> str:
    """Return that a path is there, and with which flag."""
    from dovetail.config.config import flags

    return "the same" if route.flag is None else f"with `{flags()[route.flag].spelling}`"


def _routes() -> str:
    from dovetail.server.http.not_found import UNSUPPORTED_ROUTES
    from dovetail.unsupported import sentence

    ours = our_routes()
    same, absent = [], []
    for row in facts("routes"):
        path = row["path"]
        if path in ours:
            same.append((path, route_words(path, ours[path])))
        else:
            absent.append((path, sentence(UNSUPPORTED_ROUTES[path])))
    with_flag = [(f"`{path}`", words) for path, words in same if words != "the same"]
    return "\n".join(
        [
            "## Paths\n",
            f"The same: {code(path for path, words in same if words == 'the same')}. "
            "[http.md](http.md) lists them with their fields.\n",
            table(["path", "is there"], with_flag),
            table(["why", "paths that are absent"], _by_reason(absent)),
        ]
    )


def _fields() -> str:
    """Return the fields of requests that are refused because a feature is missing."""
    from dovetail.server.generate.body.foreign_fields import known_fields
    from dovetail.unsupported import sentence

    absent = {name: row.feature for name, row in known_fields().items() if row.feature}
    rows = _by_reason((name, sentence(feature)) for name, feature in absent.items())
    return (
        "## Fields of requests\n\nFields that ask for what is absent are refused with status 400, "
        "those of other servers too ([request_fields.md](request_fields.md) lists all):\n\n"
        + table(["why", "fields"], rows)
    )


def _metrics() -> str:
    from dovetail.observability import metrics
    from dovetail_plugins.stat_loggers._families import HIDDEN
    from dovetail_plugins.stat_loggers.prometheus import PrometheusStats

    PrometheusStats(PrometheusStats.Options(shows_hidden=True), "model", 4096)
    hidden = {metrics.PREFIX + name for name in HIDDEN}
    ours = {exposed: row for row in metrics.declared() for exposed in _exposed(row)}
    same, missing = [], []
    for row in facts("metrics"):
        found = ours.get(row["name"])
        if found is None:
            missing.append(row["name"])
        else:
            same.append((row["name"], found.name in hidden))
    absent = f"Absent: {code(missing)}. " if missing else ""
    return (
        f"## Metrics\n\nThe same: {code(name for name, is_hidden in same if not is_hidden)}. "
        "Deprecated, and shown only with `--show-hidden-metrics-for-version`: "
        f"{code(name for name, is_hidden in same if is_hidden)}. {absent}"
        "[metrics.md](metrics.md) says what each counts.\n"
    )


def _exposed(row: Any) -> list[str]:
    """Return under which names of vLLM a metric is exposed."""
    if not row.alias:
        return []
    return [row.alias, f"{row.alias}_total"] if row.type == "counter" else [row.alias]


def _variables() -> str:
    from flag_pages import row_words

    from dovetail.config.config import flags
    from dovetail.config.parse.environment import OWN, variable_of
    from dovetail.config.parse.foreign_variables import foreign_variables

    own = {*OWN, *map(variable_of, flags().values())}
    by_state: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in facts("env_vars"):
        if row["name"] not in own:
            state, words = row_words(foreign_variables()[row["name"]])
            by_state[state].append((row["name"], words))
    mapped = [(f"`{name}`", words) for name, words in by_state["mapped"]]
    return "\n".join(
        [
            "## Variables\n",
            "Those that set a flag here:\n",
            table(["variable", "here"], mapped),
            "Those that others read, a library or a loader:\n",
            table(["who", "variables"], _by_reason(by_state["read"])),
            "Those without effect, which the log says:\n",
            table(["why", "variables"], _by_reason(by_state["no effect"])),
            "Those that are refused unless they ask for nothing:\n",
            table(["why", "variables"], _by_reason(by_state["unsupported"])),
        ]
    )
