"""The flags of `dovetail bench`: kinds, style, and what the command line makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli.main import load_command, main, part_of
from dovetail.cli.parser import Parser
from dovetail.config.parse.flags import config_of
from dovetail.config.sections.field import Flag, flags_of
from dovetail.errors import ConfigError
from dovetail.registry import KINDS
from dovetail_plugins.bench import serve
from dovetail_plugins.bench.report import check_report
from dovetail_plugins.bench.settings import GROUPS_BY_COMMAND, ReportFlags

ALL = {
    (group.__name__, flag.name): flag
    for groups in GROUPS_BY_COMMAND.values()
    for group in groups
    for flag in flags_of(group)
}
FREE_TEXT = {
    "backend",  # another word for an endpoint
    "api_key",
    "base_url",
    "code_revision",
    "dataset_path",
    "endpoint",
    "host",
    "label",
    "model",
    "output_json",
    "plot",
    "result_dir",
    "result_filename",
    "tokenizer",
}


def test_choices_are_kinds_and_the_rest_is_free_text() -> None:
    chosen = {flag.name: flag for flag in ALL.values() if flag.meta.kind}
    assert set(chosen) == {"dataset_name"}
    kind = KINDS["bench_dataset"]
    assert kind.flags == ("--dataset-name",)
    assert kind.default == chosen["dataset_name"].default
    assert {f.name for f in ALL.values() if f.value_type == "str" and not f.meta.kind} == FREE_TEXT


@pytest.mark.parametrize("flag", ALL.values(), ids=lambda flag: flag.name)
def test_help_is_written_in_one_style(flag: Flag) -> None:
    text = flag.meta.help
    assert text and text == text.strip() and not text.endswith(".")
    assert text[0].islower()


def parsed(part: str, *words: str) -> object:
    parser = Parser(prog="dovetail bench", description="")
    part_of(load_command("bench"), part).add_arguments(parser)
    return parser.parse(words)


def test_serve_flags() -> None:
    args = parsed(
        "serve", "--request-rate", "inf", "--random-input-len", "7", "--goodput", "ttft:200",
        "tpot:50", "--percentile-metrics", "ttft,itl", "--extra-body.top_k", "3", "--port", "1",
    )  # fmt: skip
    flags = serve.flags_of_args(args)  # type: ignore[arg-type]
    assert flags.load.request_rate is None
    assert flags.dataset.input_len == 7
    assert flags.metrics.goodput == ("ttft:200", "tpot:50")
    assert flags.metrics.percentile_metrics == ("ttft", "itl")
    assert flags.target.extra_body == {"top_k": 3}


@pytest.mark.parametrize("part", ["latency", "throughput"])
def test_offline_takes_the_engines_flags(part: str) -> None:
    args = parsed(part, "some/model", "--dtype", "half", "--seed", "5", "--max-num-seqs", "3")
    config = config_of(args, model=args.model_tag)  # type: ignore[arg-type, attr-defined]
    assert (config.model.model, config.model.dtype, config.model.seed) == ("some/model", "half", 5)
    with pytest.raises(ConfigError, match="--port"):
        parsed(part, "--port", "1")


def test_the_parts_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {part} " in text for part in GROUPS_BY_COMMAND)
    assert main(["bench"]) == 2
    assert main(["bench", "serv"]) == 2
    assert "latency, throughput, serve" in capsys.readouterr().err


@pytest.mark.parametrize("part", GROUPS_BY_COMMAND)
def test_the_first_screen_is_short(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", part, "--help"]) == 0
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith(f"usage: dovetail bench {part} ")


def test_what_cannot_be_kept_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "no" / "file")
    for flags in (
        ReportFlags(output_json=missing),
        ReportFlags(save_result=True, result_dir=missing),
        ReportFlags(metadata=("word",)),
    ):
        with pytest.raises(ConfigError):
            check_report(flags)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"dovetail-llm\[plot\]"):
        check_report(ReportFlags(plot=str(tmp_path / "a.png")))
