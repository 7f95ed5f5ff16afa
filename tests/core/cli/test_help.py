"""Help screens: short, grouped, searchable, and cheap to print."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from dovetail.cli.main import main
from dovetail.config.engine import GROUPS, flags

HEAVY = ("torch", "transformers", "pydantic", "fastapi", "huggingface_hub", "numpy", "zmq")


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


def test_a_search_word(capsys: pytest.CaptureFixture[str]) -> None:
    text = screen(capsys, "serve", "--help=prefix")
    assert "--enable-prefix-caching" in text
    assert "--prefix-caching-hash-algo" in text
    assert "--port" not in text


def test_choices_are_the_registered_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert "fcfs, priority" in screen(capsys, "serve", "--help=scheduling-policy")
    assert "1, 8, 16, 32, 64, 128" in screen(capsys, "serve", "--help=block-size")


def test_an_unknown_topic_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help=max-nun-seqs"]) == 2
    assert "--help=max-num-seqs" in capsys.readouterr().err


def run(*words: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from dovetail.cli.main import main; status = main(sys.argv[1:]);"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules]); sys.exit(status)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words", [["--help"], ["serve", "--help"], ["serve", "--help=all"], ["--version"]]
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("HEAVY []")


def test_help_is_cheap() -> None:
    run("--help")  # writes byte code where there is none yet
    costs = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(costs) <= 0.3
