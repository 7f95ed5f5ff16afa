"""Writes docs/reference from the code: flags, plugins, HTTP routes, metrics, errors.

`python docs/generate.py` writes, `--out DIR` writes elsewhere (the test suite compares). Knows no
prose beyond the head of each page; the facts come from the dataclasses, the registry, the
protocol models and the metric tables.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import pkgutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("core", "plugins", "kernels")]

NOTE = "<!-- Written by docs/generate.py; run `make docs` after a change. -->"


def plugins_page() -> str:
    """Return every kind with its built-in entries."""
    from dovetail import registry

    parts = [
        "# Plugins\n",
        NOTE,
        "\nEvery choice of every flag, by kind. `dovetail plugins list` shows the same for your "
        "installation, with what other packages add; "
        "[write_a_plugin.md](../tutorials/write_a_plugin.md) says how to add one.\n",
    ]
    parts += [_kind_section(kind) for kind in registry.admin.describe()]
    return "\n".join(parts)


def _kind_section(kind: dict[str, Any]) -> str:
    flags = ", ".join(f"`{flag}`" for flag in kind["flags"]) or "chosen by the checkpoint"
    head = [
        f"## {kind['kind']}\n",
        f"{_sentence(kind['summary'])} Flag: {flags}. Entry-point group: `{kind['group']}`. "
        f"Default: {_default(kind['default'])}.\n",
    ]
    built_in = [e for e in kind["entries"] if e["distribution"] == "dovetail-llm"]
    rows = [
        f"| `{e['name']}` | {_cell(e.get('summary', ''))} "
        f"| {', '.join(e.get('capabilities', ()))} |"
        for e in built_in
    ]
    if not rows:
        return "\n".join([*head, "No plugin of this kind comes with dovetail.\n"])
    table = ["| name | what | capabilities |", "|---|---|---|", *rows]
    return "\n".join([*head, *table, ""])


def _cell(text: str) -> str:
    """Return a plain text as it is written in a table: no tag, no end of a cell."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _default(name: str | None) -> str:
    return f"`{name}`" if name else "none"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def first_paragraph(documented: Any) -> str:
    """Return the first paragraph of a docstring, over as many lines as it takes.

    Raises: ValueError for one that does not end as a sentence does
    """
    paragraph = " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
    if not paragraph.endswith((".", "!", "?")):
        raise ValueError(f"the docstring of {documented!r} does not begin with a sentence.")
    return paragraph


def http_page() -> str:
    """Return routes with their first docstring paragraph, then the fields of each request body."""
    from dovetail.server.families import build_apis, needed

    routes = [route for api in build_apis().values() for route in api.routes]
    parts = [
        "# HTTP routes\n",
        NOTE,
        '\nErrors are JSON in OpenAI\'s shape: `{"error": {"message", "type", "param", '
        '"code"}}`; below `/v1/messages` in Anthropic\'s: `{"type", "error": {"type", '
        '"message"}, "request_id"}`; below `/api` in Ollama\'s: `{"error"}`; on '
        '`/v2/embed` in Cohere\'s: `{"message", "id"}`; on `/embed`, `/predict` and their like '
        'in text-embeddings-inference\'s: `{"error", "error_type"}`. When keys are '
        "set (`--api-key`), every route needs one, as "
        "`Authorization: Bearer KEY` or `x-api-key: KEY`, except those marked "
        "open.\n",
        "| method | path | what | key |",
        "|---|---|---|---|",
    ]
    for route in sorted(routes, key=lambda route: route.flag is not None):
        line = first_paragraph(route.endpoint)
        if route.flag is not None:
            how, flag = needed(route.flag).split()
            line += f" Only {how} `{flag}`."
        key = "open" if route.is_open else "needed"
        parts.append(f"| {route.method} | `{route.path}` | {line} | {key} |")
    bodies = [route.body for route in routes if route.body is not None]
    parts += [_fields_section(body) for body in bodies]
    return "\n".join(parts) + "\n"


def _fields_section(body: Any) -> str:
    schema = body.model_json_schema()
    required = schema.get("required", ())
    rows = [
        f"| `{name}` | {_shape(facts)} | {'required' if name in required else _shown(facts)} |"
        for name, facts in schema["properties"].items()
    ]
    head = f"\n## {body.__name__}\n\n| field | shape | default |\n|---|---|---|"
    return "\n".join([head, *rows])


def _shape(facts: dict[str, Any]) -> str:
    """Return a JSON schema node in words."""
    if "anyOf" in facts:
        return " or ".join(_shape(part) for part in facts["anyOf"] if part.get("type") != "null")
    if "$ref" in facts:
        return facts["$ref"].rsplit("/", 1)[1]
    if "enum" in facts or "const" in facts:
        return ", ".join(f"`{word}`" for word in facts.get("enum", [facts.get("const")]))
    if facts.get("type") == "array":
        return f"list of {_shape(facts.get('items', {}))}"
    low, high = facts.get("minimum"), facts.get("maximum")
    is_told = low is not None and high is not None and max(-low, high) < 1e6
    return facts.get("type", "any") + (f" {low:g} to {high:g}" if is_told else "")


def _shown(facts: dict[str, Any]) -> str:
    default = facts.get("default")
    return "" if default is None else f"`{default!r}`"


def metrics_page() -> str:
    """Return every metric family with its names, type, labels and help text."""
    import dovetail_plugins.gateway.metrics
    import dovetail_plugins.stat_loggers.accounts  # noqa: F401 (declares its own)
    from dovetail.observability import metrics
    from dovetail_plugins.stat_loggers._families import HIDDEN
    from dovetail_plugins.stat_loggers.prometheus import PrometheusStats

    PrometheusStats(PrometheusStats.Options(shows_hidden=True), "model", 4096)
    parts = [
        "# Metrics\n",
        NOTE,
        "\n`GET /metrics` answers in the Prometheus text format; [observe.md]"
        "(../how_to/observe.md) says how to use it. A metric with a second name is one number "
        "shown twice: under dovetail's name and under that of `vllm serve`, so that its dashboards "
        "work. To counters the format adds `_total`, to histograms `_bucket`, `_sum` and "
        "`_count`. Hidden metrics are deprecated ones that only "
        "`--show-hidden-metrics-for-version` shows.\n",
        "| name | second name | type | labels | what |",
        "|---|---|---|---|---|",
    ]
    hidden = {metrics.PREFIX + name for name in HIDDEN}
    parts += [
        f"| `{row.name}` | {_code_or_nothing(row.alias)} | {row.type} "
        f"| {', '.join(f'`{label}`' for label in row.labels)} "
        f"| {row.help_text}{' (hidden)' if row.name in hidden else ''} |"
        for row in metrics.declared()
    ]
    return "\n".join(parts) + "\n"


def _code_or_nothing(text: str | None) -> str:
    return f"`{text}`" if text else ""


def errors_page() -> str:
    """Return the exception tree with the status each request error becomes."""
    from dovetail import errors

    parts = [
        "# Errors\n",
        NOTE,
        "\nEvery error says what went wrong, where, and how to mend it. A `ConfigError` ends the "
        "command with status 2, its cause in the last lines; a `RequestError` ends one request.\n",
        "| class | kind of | HTTP status | what |",
        "|---|---|---|---|",
    ]
    tree = ast.parse(inspect.getsource(errors))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            cls = getattr(errors, node.name)
            status = getattr(cls, "status", "")
            line = first_paragraph(cls)
            parts.append(f"| `{node.name}` | `{cls.__base__.__name__}` | {status} | {line} |")
    return "\n".join(parts) + "\n"


def bench_page() -> str:
    """Return the flags of every measurement, each group once."""
    from flag_pages import group_sections

    from dovetail_plugins.bench.settings import GROUPS_BY_COMMAND

    groups = dict.fromkeys(group for names in GROUPS_BY_COMMAND.values() for group in names)
    parts = [
        "# Flags of `dovetail bench`\n",
        NOTE,
        "\nHow to use them is told in [measure.md](../how_to/measure.md). `latency` and "
        "`throughput` also take the flags of [`dovetail serve`](flags.md), those of its HTTP "
        "server left out.\n",
        "| measurement | groups |",
        "|---|---|",
    ]
    for command, names in GROUPS_BY_COMMAND.items():
        listed = ", ".join(f"[{group.__name__}](#{_anchor(group)})" for group in names)
        parts.append(f"| `dovetail bench {command}` | {listed} |")
    return "\n".join([*parts, "", *group_sections(groups)])


def batch_page() -> str:
    """Return the flags of run-batch, and which of the HTTP server's it takes."""
    from flag_pages import group_sections

    from dovetail_plugins.batch.settings import BatchFlags, answer_flags

    taken = ", ".join(f"`{flag.spelling}`" for flag in answer_flags())
    parts = [
        "# Flags of `dovetail run-batch`\n",
        NOTE,
        "\nHow to use them is told in [run_a_batch.md](../how_to/run_a_batch.md). It also takes "
        "the flags of [`dovetail serve`](flags.md), of those of its HTTP server these alone: "
        f"{taken}.\n",
    ]
    return "\n".join([*parts, *group_sections([BatchFlags])])


def _anchor(group: type[object]) -> str:
    """Return the link target that Markdown viewers make of the group's heading."""
    from dovetail.config.sections.field import group_title

    heading = f"{group.__name__}: {group_title(group)}".lower()
    return "".join(c for c in heading if c.isalnum() or c in " -_").replace(" ", "-")


def structured_output_page() -> str:
    """Return which backend enforces what: capabilities, keywords of JSON schemas, formats."""
    from dovetail import registry
    from dovetail_grammars.json_formats import FORMATS
    from dovetail_grammars.schema import ENFORCED_BESIDE

    kind = "structured_output_backend"
    names = [
        e["name"] for k in registry.admin.describe() if k["kind"] == kind for e in k["entries"]
    ]
    found = {name: registry.find(kind, name) for name in names}
    # Not by registry.load: what a library can do is told where it is not installed, too.
    classes = {
        name: pkgutil.resolve_name(entry.target)
        for name, entry in found.items()
        if entry.distribution == "dovetail-llm"
    }
    first = next(iter(classes.values()))
    head = " | ".join(f"`{name}`" for name in classes)
    line = "---|" * len(classes)
    parts = [
        "# Structured output\n",
        NOTE,
        "\nWhat each backend enforces, as its class says and as sampling has proved "
        "(`tests/plugins/structured_output/sweep.py`), once a schema is rewritten: `not`, `if`, "
        "`oneOf` that overlaps, `dependentRequired` and others are gone by then where they can be "
        "(the page below says how). A keyword that is left and not in the tables is refused "
        "with status 400 and a JSON Pointer; annotations are ignored. `auto` takes the first "
        "backend by rank that enforces all of a request's constraint. "
        "[structured_output.md](../explanation/structured_output.md) says how it works.\n",
        f"| can | {head} |",
        f"|---|{line}",
    ]
    for word, meaning in first.known_capabilities.items():
        cells = " | ".join("yes" if word in c.capabilities else "" for c in classes.values())
        parts.append(f"| {meaning} | {cells} |")
    cells = " | ".join(", ".join(c.languages) for c in classes.values())
    parts.append(f"| languages of grammars | {cells} |")
    ranks = " | ".join(str(c.auto_rank) for c in classes.values())
    parts += [f"| rank for `auto` | {ranks} |", "", f"| keyword | {head} |", f"|---|{line}"]
    keywords = sorted(set().union(*(c.keywords for c in classes.values())))
    for word in sorted({*keywords, *ENFORCED_BESIDE}):
        answers = [
            "yes" if word in ENFORCED_BESIDE else _enforced(c, word, keywords)
            for c in classes.values()
        ]
        cells = " | ".join(answers)
        parts.append(f"| `{word}` | {cells} |")
    formats = ", ".join(f"`{name}`" for name in FORMATS)
    parts += ["", f"Formats: {formats}; each is enforced as a pattern, every other format is an "]
    parts[-1] += "annotation. `int32` and `int64` (to 18 digits) are bounds of numbers.\n"
    figures = ROOT / "docs" / "reference" / "structured_output.json"
    parts += _measured(json.loads(figures.read_text(encoding="utf-8")), list(classes))
    return "\n".join(parts)


GROUPS = {
    "answers": "what programs ask of models",
    "openapi": "components of OpenAPI documents",
    "kubernetes": "objects like those of Kubernetes",
    "references": "`$ref` in all its forms",
    "trees": "schemas that refer to themselves",
    "documents": "package.json, GeoJSON, invoices, ...",
    "wild/settings": "settings of editors and linters",
    "wild/manifests": "manifests of packages and events",
    "wild/pipelines": "files of build services",
    "wild/openapi": "more components of OpenAPI documents",
    "wild/kubernetes": "more of Kubernetes, custom resources",
    "wild/tools": "arguments of tools",
    "wild/models": "output of pydantic, zod and generators",
    "wild/drafts": "spellings of drafts 3 to 2020-12",
    "wild/documents": "documents of all sorts",
    "published/components": "components as APIs publish them",
    "published/resources": "resources, custom ones and charts",
    "published/editors": "package manifests, compilers, extensions",
    "published/workflows": "workflows, pipelines, templates",
    "published/functions": "functions and tools, by library",
    "published/generated": "output of generators of a dozen languages",
    "metaschemas of the drafts": "metaschemas of the drafts",
    "JSON-Schema-Test-Suite": "JSON-Schema-Test-Suite, draft 2020-12, with formats",
}


def _measured(found: dict[str, Any], names: list[str]) -> list[str]:
    """Return the tables of figures that benchmarks/schemas.py and the sweep keep."""
    head, line = " | ".join(f"`{name}`" for name in names), "---|" * len(names)
    return [
        "## Sampled keyword by keyword\n",
        "Every keyword, and every two on one node, in schemas drawn at random: random tokens that "
        "the masks allow, until the end, judged by jsonschema "
        "(`tests/plugins/structured_output/sweep.py --samples 1000 --out ...`). Of those refused "
        "no schema is "
        "taken; the table above says why.\n",
        *(f"| | {head} |", f"|---|{line}"),
        *_sampled_rows(found["sampled"], names),
        "\n## Schemas of the world\n",
        "How many schemas each backend takes, all their keywords enforced, asked as the server "
        "asks (`benchmarks/schemas.py`; compiling took at most 10 s). Our own are in "
        "`tests/data/schemas`. Random answers to those taken are judged as above; the suite says "
        "of each of its values whether it is right. " + _when(found["measured"], names) + "\n",
        *(f"| schemas | number | `auto` | {head} |", f"|---|---|---|{line}"),
        *_schema_rows(found["schemas"], ["auto", *names]),
        "\nRight values that are not taken: rare spellings of formats (leap seconds, quoted "
        "mail addresses), whole numbers written as 1.0, members in another "
        "order or beside those of `properties`.\n",
        "What the others are refused for, the first thing in each: the keyword at the end of the "
        "JSON Pointer, or what compiling said.\n",
        *(f"| refused for | {head} |", f"|---|{line}"),
        *_refused_rows(found["schemas"], names),
        "",
    ]


def _when(measured: Mapping[str, str], names: list[str]) -> str:
    """Return when and where the figures were measured."""
    by_text: dict[str, list[str]] = defaultdict(list)
    for name in ["auto", *names]:
        by_text[measured.get(name, "earlier")].append(f"`{name}`")
    return "Measured: " + "; ".join(f"{', '.join(n)}: {text}" for text, n in by_text.items()) + "."


def _row(said: str, cells: Iterable[str]) -> str:
    return f"| {said} | {' | '.join(cells)} |"


def _sampled_rows(found: dict[str, Any], names: list[str]) -> list[str]:
    rows = (
        ("keywords and pairs, at least 1,000 answers each", "full"),
        ("with fewer", "few"),
        ("refused", "refused"),
        ("schemas", "schemas"),
        ("answers judged", "answers"),
        ("wrong texts beside right ones, tried", "near"),
        ("wrong", "wrong"),
    )
    return [_row(said, [f"{found[name][word]:,}" for name in names]) for said, word in rows]


def _schema_rows(found: dict[str, Any], names: list[str]) -> list[str]:
    parts = []
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for group, said in GROUPS.items():
        of = {name: found[group][name] for name in names if name in found[group]}
        number = max(figures["schemas"] for figures in of.values())
        cells = [str(of[n].get("taken", 0)) if n in of else "" for n in names]
        parts.append(_row(said, [str(number), *cells]))
        if "/" in group:
            taken = {name: figures.get("taken", 0) for name, figures in of.items()}
            totals[group.split("/")[0]].update(taken | {"schemas": number})
    for corpus, counts in totals.items():
        shares = [
            f"{100 * counts[name] / counts['schemas']:.0f} %" if counts[name] else ""
            for name in names
        ]
        said = f"**of all in `tests/data/schemas/{corpus}`**"
        parts.append(_row(said, [str(counts["schemas"]), *shares]))
    suite = found["JSON-Schema-Test-Suite"]
    for verdict in ("right", "wrong"):
        word = f"{verdict} values"
        cells = [
            f"{suite[n].get(f'{word} taken', 0)} of {suite[n][word]}" if n in suite else ""
            for n in names
        ]
        parts.append(_row(f"the suite's {word}, taken", ["", *cells]))
    for said, word in (("random answers judged", "answers"), ("wrong ones", "wrong")):
        cells = [
            f"{sum(group[n].get(word, 0) for group in found.values() if n in group):,}"
            for n in names
        ]
        parts.append(_row(said, ["", *cells]))
    return parts


def _refused_rows(found: dict[str, Any], names: list[str]) -> list[str]:
    counts = {name: Counter[str]() for name in names}
    for group in found.values():
        for name in names:
            counts[name].update(group.get(name, {"refused": {}})["refused"])
    totals = sum(counts.values(), Counter[str]())
    parts = []
    for reason in sorted(totals, key=lambda reason: (-totals[reason], reason)):
        said = reason[1:-1] if reason.startswith("(") else f"`{reason}`"
        parts.append(_row(said, [str(counts[name][reason] or "") for name in names]))
    return parts


def _enforced(backend: Any, word: str, keywords: list[str]) -> str:
    """Return "yes", or beside which other keywords a keyword is refused."""
    if word not in backend.keywords:
        return ""
    values: dict[str, Any] = {"minProperties": 2, "required": ["a"], "enum": [1], "format": "date"}
    values["properties"] = {}
    node = {word: values.get(word, 1)}
    if backend.refuses(node, word):
        return "in part"
    others = [k for k in keywords if backend.refuses(node | {k: values.get(k, 1)}, word)]
    if len(others) > 6:
        return "alone or beside `type`"
    return "yes" if not others else "not beside " + ", ".join(f"`{k}`" for k in others)


def pages() -> dict[str, str]:
    """Return file name -> text of every generated page."""
    from architectures_page import architectures_page
    from conformance_page import conformance_page
    from flag_pages import flags_page, variables_page
    from gguf_page import gguf_page
    from migration_pages import vllm_page
    from mtp_page import mtp_page
    from ollama_page import ollama_page
    from quantization_page import quantization_page
    from request_fields_page import request_fields_page

    return {
        "flags.md": flags_page(),
        "variables.md": variables_page(),
        "bench.md": bench_page(),
        "batch.md": batch_page(),
        "plugins.md": plugins_page(),
        "architectures.md": architectures_page(NOTE),
        "gguf.md": gguf_page(NOTE),
        "mtp.md": mtp_page(NOTE),
        "quantization.md": quantization_page(NOTE),
        "structured_output.md": structured_output_page(),
        "conformance.md": conformance_page(NOTE),
        "http.md": http_page(),
        "request_fields.md": request_fields_page(NOTE),
        "metrics.md": metrics_page(),
        "errors.md": errors_page(),
        "from_vllm.md": vllm_page(NOTE),
        "from_ollama.md": ollama_page(NOTE),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reference")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
