"""Command lines of published recipes for vLLM: each starts, or is refused with a named reason.

tests/reference/vllm_recipes.tsv has them, and vllm_recipes_refused.json the reasons. Flags, names
and JSON values are checked by the code that `dovetail serve` runs before it looks for the model; no
model is read.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from dovetail import registry
from dovetail.cli.parser import Parser
from dovetail.config.config import Config
from dovetail.config.parse.parse_config import parse_config
from dovetail.config.rules.drafts import speculation
from dovetail.config.rules.drafts.keys import draft_keys
from dovetail.config.rules.json_keys import read_keys
from dovetail.config.rules.one_model import check_one_model
from dovetail.config.rules.steps import kv_transfer
from dovetail.config.rules.steps.compile_level import step_making
from dovetail.errors import ConfigError
from dovetail_plugins.commands._serve_flags import add_serve_arguments

FILE = Path(__file__).resolve().parents[2] / "reference" / "vllm_recipes.tsv"
SHARE = 0.95
"""The share of recipes whose first line must start."""
PARSERS = {"nano_v3": "reasoning_parser", "nemotron_json": "tool_parser", "minicpm5": "tool_parser"}
"""Names of parsers in files that recipes fetch -> their kind."""
PLUGIN = """\
from dovetail.registry import register
from dovetail_plugins.{kind}s.{module} import {cls} as Base


@register("{kind}", "{name}")
class Fetched(Base):
    pass
"""
BASES = {"tool_parser": ("hermes", "Hermes"), "reasoning_parser": ("qwen3", "Qwen3")}

REFUSED = {
    (row["where"], row["why"]): row["lines"]
    for row in json.loads(FILE.with_name("vllm_recipes_refused.json").read_text(encoding="utf-8"))
}
"""Where an error points, and a part of what it says -> number of lines."""


class Line(NamedTuple):
    """One command line: the recipe's model, the variant, and the words after the model."""

    model: str
    variant: str
    words: list[str]


@cache
def lines() -> list[Line]:
    rows = (row.split("\t") for row in FILE.read_text(encoding="utf-8").splitlines())
    return [Line(model, variant, shlex.split(flags)) for model, variant, flags in rows]


@cache
def parser() -> Parser:
    made = Parser(prog="dovetail serve", description="")
    add_serve_arguments(made)
    return made


def checked_config(line: Line) -> Config:
    """Return the config of a line. Raises: ConfigError"""
    args = parser().parse([line.model, *line.words])
    args.model_tag = args.model_tag[0]
    config = parse_config(args, stream=io.StringIO())
    check_one_model(config.origins)
    check_values(config)
    return config


def check_values(config: Config) -> None:
    """Check the JSON values that need no model. Raises: ConfigError"""
    step_making(config.model, config.scheduler, config.engine, recorded_rows=None, max_rows=256)
    keys = draft_keys(config.speculative)
    if keys is not None and keys.method is not None:  # otherwise the draft model's files decide
        speculation.asked_drafter(config.model, config.load, config.speculative, config.plugin)
    speculation.acceptance_of(config.speculative, config.plugin)
    if config.engine.kv_transfer_config:
        transfer = read_keys(
            kv_transfer.TransferKeys, config.engine.kv_transfer_config, kv_transfer.FLAG
        )
        kv_transfer._connector(transfer)
    kv_transfer.events_spec(config.cache, config.engine)


def refusal(line: Line) -> tuple[str, str] | None:
    """Return the row of `REFUSED` that a line's error has, None if it starts."""
    try:
        with registry.admin.with_entries({}):  # a line's own parsers are no other line's
            checked_config(line)
    except ConfigError as error:
        for where, part in REFUSED:
            if error.where == where and part in error.what:
                return where, part
        return str(error.where), error.what
    return None


@pytest.fixture
def fetched_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the templates and parsers that recipes name by a file, and the secret they set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_DATA_PARALLEL_SECRET", "0" * 64)
    for line in lines():
        for word in line.words:
            path = Path(word)
            if path.suffix in (".jinja", ".py") and not path.is_absolute():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file_text(line) if path.suffix == ".py" else "", encoding="utf-8")


def file_text(line: Line) -> str:
    """Return a file with the parser that a line takes from one."""
    name = next(word for word in line.words if word in PARSERS)
    kind = PARSERS[name]
    module, cls = BASES[kind]
    return PLUGIN.format(kind=kind, module=module, cls=cls, name=name)


def test_every_line_starts_or_has_a_reason(fetched_files: None) -> None:
    refused = {(line.model, line.variant): refusal(line) for line in lines()}
    assert Counter(row for row in refused.values() if row) == REFUSED
    first: dict[str, tuple[str, str] | None] = {}
    for (model, _), row in refused.items():
        first.setdefault(model, row)
    started = sum(row is None for row in first.values())
    assert len(first) >= 170
    assert started / len(first) >= SHARE, [model for model, row in first.items() if row]


def test_each_line_is_one_of_a_kind() -> None:
    """Facts alone: a model, a variant of one word, and flags."""
    assert len({line[:2] for line in lines()}) == len(lines())
    for line in lines():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", line.model)
        assert re.fullmatch(r"\w+", line.variant)
        assert not line.words or line.words[0].startswith("-"), line
