"""Every example runs as its docstring says, against the demo model."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import ServerProcess
from support.tiny_encoders import write_tiny_bert

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PATHS = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels"))


def output_of(name: str, *arguments: str) -> str:
    """Return what an example prints. Raises: CalledProcessError when it fails."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ServerProcess("--port", "0") as server:
        yield server.wait_ready().url


def test_offline_chat() -> None:
    assert "The capital of France is Paris." in output_of("offline_chat.py")


def test_swap_by_name() -> None:
    assert len(output_of("swap_by_name.py").splitlines()) == 2


def test_learn_arithmetic() -> None:
    pytest.importorskip("transformers")
    first, *steps, last = output_of("learn_arithmetic.py", "--steps", "2").splitlines()
    assert re.fullmatch(r"step 0: \d+% of all sums are right", first)
    assert [re.match(r"step 2: \d+% of all sums are right", line) is None for line in steps] == [
        False
    ]
    said = re.fullmatch(r"largest mismatch: 0\.0 \((\S+) with torch's operations\)", last)
    assert said is not None and 0 < float(said[1]) < 1e-4


def test_structured_output() -> None:
    schema, pattern, choice = output_of("structured_output.py").splitlines()
    assert set(ast.literal_eval(schema.partition(": ")[2])) == {"city", "is_capital"}
    assert re.fullmatch(r"pattern: [A-Z][a-z]+, \d{4}", pattern)
    assert choice in ("choice: yes", "choice: no")


def test_rag(tmp_path: Path) -> None:
    ranker = write_tiny_bert(tmp_path, num_classes=1)
    texts = ("--docs", str(ROOT / "docs" / "tutorials"))
    *read, answer = output_of("rag.py", *texts, "--ranker", str(ranker)).splitlines()
    assert [line.partition(": ")[0] for line in read] == ["read"] * 3
    assert len(set(read)) == 3
    assert re.fullmatch("answer: .+", answer)


def test_stream_chat(url: str) -> None:
    pytest.importorskip("openai")
    assert output_of("stream_chat.py", url) == "The capital of Japan is Tokyo.\n"


def test_tool_calling(url: str) -> None:
    pytest.importorskip("openai")
    call, answer = output_of("tool_calling.py", url).splitlines()
    assert call == 'call: get_weather {"city": "Paris"}'
    assert "21" in answer


def test_every_example_is_run_here() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {
        "alpaca.py",
        "favoured_words.py",
        "live_transcript.py",
        "own_policy.py",
    }
    text = Path(__file__).read_text()
    assert [name for name in sorted(scripts) if f'"{name}"' not in text] == []
