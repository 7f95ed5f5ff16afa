"""Help screens: short, grouped, searchable, and cheap to print."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.cli.main import main
from dovetail.config.compat.unsupported_flags import UNSUPPORTED_FLAGS, UnsupportedFlag
from dovetail.config.config import GROUPS, flags

HEAVY = ("torch", "transformers", "pydantic", "fastapi", "huggingface_hub", "numpy", "zmq")
REFERENCE = Path(__file__).resolve().parents[2] / "reference"


def screen(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["serve", "--help"], ["serve", "model", "-h"]]
)
def test_first_screens_are_short(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = screen(capsys, *words).rstrip("\n").split("\n")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("command", ["serve", "chat", "complete", "plugins", "bench"])
def test_the_first_screen_names_every_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"\n  {command} " in screen(capsys, "--help")
    assert f"usage: dovetail {command}" in screen(capsys, command, "--help")


def test_serve_shows_its_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = screen(capsys, "serve", "--help")
    assert all(group.__name__ in text for group in GROUPS.values())
    listed = screen(capsys, "serve", "--help=listgroup")
    assert all(group.__name__ in listed for group in GROUPS.values())


def test_all_shows_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = screen(capsys, "serve", "--help=all")
    for flag in flags().values():
        assert f"{flag.spelling} " in text.replace(",", " ").replace("\n", " ")


@pytest.mark.parametrize("topic", ["CacheConfig", "cacheconfig", "cache"])
def test_a_group(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = screen(capsys, "serve", f"--help={topic}")
    assert "--kv-cache-dtype" in text
    assert "--port" not in text


@pytest.mark.parametrize("topic", ["max-num-seqs", "max_num_seqs", "--max-num-seqs"])
def test_a_flag(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = screen(capsys, "serve", f"--help={topic}")
    assert text.strip().startswith("--max-num-seqs N")
    assert "requests, at least 1" in text
    assert text.count("--max") == 1


@pytest.mark.parametrize(
    ("topic", "usage"),
    [
        ("q", "-q, --quantization NAME"),
        ("-O", "-O, --compilation-config, -cc LEVEL|JSON"),
        ("device", "--device NAME"),
        ("model", "--model TEXT"),
        ("no-enforce-eager", "--enforce-eager, --no-enforce-eager"),
        ("hf-overrides.rope_theta", "--hf-overrides JSON"),
    ],
)
def test_a_flag_by_another_spelling(
    topic: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert screen(capsys, "serve", f"--help={topic}").splitlines()[0].strip() == usage


def test_a_flag_tells_its_other_routes_and_its_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = UnsupportedFlag("media_answers")
    monkeypatch.setitem(UNSUPPORTED_FLAGS, "video_pruning_rate", row)
    text = " ".join(screen(capsys, "serve", "--help=video-pruning-rate").split())
    assert "Variable: DOVETAIL_VIDEO_PRUNING_RATE. In a YAML file: `video-pruning" in text
    assert f"Unsupported: {row.missing}" in text
    mapped = " ".join(screen(capsys, "serve", "--help=num-speculative-tokens").split())
    assert "Deprecated: today --speculative-config.num_speculative_tokens." in mapped


@pytest.mark.parametrize(
    ("topic", "shown", "left_out"),
    [
        ("VllmConfig", "--compilation-config, -cc", "--port"),
        ("DecodingConfig", "--structured-outputs-config", "--port"),
        ("StructuredOutputsConfig", "--structured-outputs-config", "--port"),
        ("Frontend", "--port", "--max-num-seqs"),
        ("Options", "--api-server-count", "--port"),
        ("PromptAdapterConfig", "--max-prompt-adapters", "--port"),
        ("SpeculativeConfig", "-sc, --speculative-config", "--port"),
    ],
)
def test_group_names_of_others(
    topic: str, shown: str, left_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = screen(capsys, "serve", f"--help={topic}")
    assert f"{shown} " in text
    assert f"{left_out} " not in text


def test_every_group_of_the_reference_is_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads((REFERENCE / "cli_flags.json").read_text())
    for group in {row["group"] for row in rows}:
        assert "--" in screen(capsys, "serve", f"--help={group}"), group


def test_a_search_word(capsys: pytest.CaptureFixture[str]) -> None:
    text = screen(capsys, "serve", "--help=max")
    usages = [line for line in text.splitlines() if line.startswith("  -")]
    named = [flag.spelling for flag in flags().values() if "max" in flag.spelling]
    assert len(named) > 10
    assert all(
        any(f"{name} " in f"{usage} ".replace(",", " ") for usage in usages) for name in named
    )
    assert not any("--port " in usage for usage in usages)
    told = screen(capsys, "serve", "--help=prefix").splitlines()
    assert any(line.startswith("also: ") for line in told[-3:])
    assert "--prefix-caching-hash-algo NAME" in "\n".join(told)


def test_choices_are_told_with_their_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    names = [line.split()[0] for line in choice_lines(capsys, "block-size")]
    assert names == ["1", "8", "16", "32", "64", "128", "256"]
    rows = choice_lines(capsys, "attention-backend")
    assert rows[0].startswith("auto ")
    assert rows[-1] == "or NAME@PACKAGE, package.module:Class, path/to/file.py:Class"
    kind = registry.KINDS["platform"]
    assert "not available: " in screen(capsys, "serve", f"--help={kind.flags[0]}")


def choice_lines(capsys: pytest.CaptureFixture[str], topic: str) -> list[str]:
    lines = screen(capsys, "serve", f"--help={topic}").splitlines()
    return [line.strip() for line in lines if line.startswith(" " * 8)]


def test_a_choice_of_another_package_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policies.py"
    file.write_text('raise RuntimeError("help imported a plugin")\nX = V(summary="by length")\n')
    with registry.admin.with_entries({"scheduling_policy": {"shortest@mine": f"{file}:X"}}):
        assert "shortest        by length (mine)" in choice_lines(capsys, "scheduling-policy")


def test_a_page_is_printed_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert screen(capsys, "serve", "--help=page") == screen(capsys, "serve", "--help=all")


def test_a_page_goes_through_the_pager() -> None:
    leader, follower = pty.openpty()
    environ = {k: v for k, v in os.environ.items() if k != "MANPAGER"}
    done = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "bench", "latency", "--help=page"],
        env=environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PAGER": "head -n 1 | tr a-z A-Z"},
        stdin=follower,
        stdout=follower,
    )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
        while piece := os.read(leader, 4096):
            shown += piece
    os.close(leader)
    assert done.wait() == 0
    assert shown.decode().strip().startswith("USAGE: DOVETAIL BENCH LATENCY")
    assert shown.count(b"\n") == 1


def test_an_unknown_topic_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help=max-nun-seqs"]) == 2
    assert "--help=max-num-seqs" in capsys.readouterr().err


def run(*words: str, then: str | None = None) -> subprocess.CompletedProcess[str]:
    then = then or f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    code = (
        "import sys; from dovetail.cli.main import main; status = main(sys.argv[1:]);"
        f"{then}; sys.exit(status)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["serve", "--help"],
        ["serve", "--help=all"],
        ["serve", "--help=quantization"],
        ["--version"],
    ],
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("HEAVY []")
    assert "imported a plugin" not in done.stdout


def test_help_is_cheap() -> None:
    """Few modules are loaded: their number is what its time hangs on, and no clock is needed."""
    done = run("--help", then="print(len(sys.modules))")
    assert int(done.stdout.split()[-1]) <= 300
