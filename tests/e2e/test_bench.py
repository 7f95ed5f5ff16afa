"""`dovetail bench` on the demo model: a served one under load, and the two offline measurements."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from support.server_process import ServerProcess
from support.tiny_encoders import write_tiny_bert

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def log_is_left_as_found() -> Iterator[None]:
    """Take back what the offline measurements do to the log of this process."""
    logger = logging.getLogger("dovetail")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--port", "0", "--api-key", "k", "--uvicorn-log-level", "warning") as found:
        yield found.wait_ready()


def bench(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the result file of one measurement."""
    file = tmp_path / "result.json"
    status = main(["bench", *words, "--output-json", str(file), "--label", "test"])
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return status, result


def load(server: ServerProcess, tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    fixed = ["--base-url", server.url, "--api-key", "k", "--num-prompts", "6", "--ignore-eos"]
    return bench(tmp_path, "serve", *fixed, *words)


def test_serve_completions(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input-len", "20", "--output-len", "96", "--max-concurrency", "3"]
    status, result = load(
        server, tmp_path, *words, "--num-warmups", "2", "--goodput", "ttft:60000", "--save-detailed"
    )
    assert status == 0
    found = result["results"]
    assert (found["completed"], found["failed"], found["other_length"]) == (6, 0, 0)
    assert (found["prompt_tokens"], found["output_tokens"]) == (6 * 20, 6 * 96)
    assert found["counted_by"] == {"running usage": 6}
    assert found["peak_concurrency"] == 3
    assert found["goodput_requests_per_s"] == pytest.approx(found["requests_per_s"])
    assert 0 < found["ttft_ms"]["median"] < found["e2el_ms"]["median"]
    assert 0 < found["tpot_ms"]["mean"] == pytest.approx(found["itl_ms"]["mean"], rel=0.5)
    assert len(result["requests"]) == 6
    # A client that had no core for a while gets a whole answer at once: no time between its tokens.
    assert all(len(one["itl_ms"]) < 96 for one in result["requests"])
    assert any(one["itl_ms"] for one in result["requests"])
    assert result["settings"]["api_key"] == "***"
    assert result["machine"]["logical_cores"] >= 1
    assert result["server"]["model"] == "dovetail-demo"
    assert "requests that succeeded                                6" in capsys.readouterr().out
    file = str(tmp_path / "result.json")
    assert main(["bench", "compare", file, file]) == 0
    assert "mean itl ms" in capsys.readouterr().out


def test_serve_chat_at_a_rate(server: ServerProcess, tmp_path: Path) -> None:
    words = ["--endpoint", "/v1/chat/completions", "--input-len", "9", "--output-len", "5"]
    status, result = load(server, tmp_path, *words, "--request-rate", "50", "--burstiness", "2")
    found = result["results"]
    assert (status, found["completed"], found["output_tokens"]) == (0, 6, 30)
    overheads = found["prompt_tokens"] - 6 * 9
    assert overheads > 0 and overheads % 6 == 0  # the same chat template around every prompt


def test_failures_are_counted_and_told(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "One two", "output_tokens": 4}, {"prompt": "a b " * 3000}]
    file.write_text("\n".join(map(json.dumps, lines)))
    words = ["--dataset-name", "jsonl", "--dataset-path", str(file)]
    statuses = {}
    for seed in ("0", "1"):  # the order of the lines decides which one the probe gets
        status, result = load(server, tmp_path, *words, "--num-prompts", "4", "--seed", seed)
        statuses[seed] = status, bool(result)
    assert (0, True) in statuses.values()
    found = json.loads((tmp_path / "result.json").read_text())["results"]
    assert (found["completed"], found["failed"]) == (2, 2)
    assert all("status 400" in text for text in found["errors"])
    assert "failed: 2 x status 400" in capsys.readouterr().out


def test_a_wrong_key_is_explained(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load(server, tmp_path, "--api-key", "wrong")[0] == 1
    assert "--api-key" in capsys.readouterr().err


def test_the_start_of_a_server_is_told(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "start.json"
    words = ["startup", "--base-url", server.url, "--api-key", "k", "--output-json", str(file)]
    assert main(["bench", *words]) == 0
    phases = {one["name"]: one for one in json.loads(file.read_text())["phases"]}
    assert list(phases)[:3] == ["imports", "config", "engine"]
    ends = {name: one["began_s"] + one["duration_s"] for name, one in phases.items()}
    engine = {name: one for name, one in phases.items() if name.startswith("engine: ")}
    assert len(engine) > 1
    assert max(ends[name] for name in engine) == pytest.approx(ends["engine"], abs=1e-3)
    assert min(one["began_s"] for one in engine.values()) >= phases["engine"]["began_s"]
    assert phases["application"]["began_s"] >= phases["engine"]["began_s"]
    assert f"ready {max(ends.values()):.2f} s after" in capsys.readouterr().out


def test_latency(tmp_path: Path) -> None:
    words = ["--batch-size", "2", "--input-len", "8", "--output-len", "4", "--num-iters", "3"]
    status, result = bench(tmp_path, "latency", *words, "--num-iters-warmup", "1")
    found = result["results"]
    assert (status, found["iterations"]) == (0, 3)
    times = [found[f"{name}_ms"]["mean"] for name in ("latency", "prefill", "step")]
    assert all(time > 0 for time in times)
    assert times[1] + 3 * times[2] <= times[0] * 1.1
    assert found["output_tokens_per_s"] == pytest.approx(1e3 * 2 * 4 / times[0])
    assert result["machine"]["torch_threads"] >= 1


def test_a_model_that_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_tiny_bert(tmp_path / "bert"))
    words = ["--num-prompts", "5", "--input-len", "32"]
    status, result = bench(tmp_path, "throughput", folder, *words, "--save-detailed")
    found = result["results"]
    assert (status, found["completed"], found["prompt_tokens"]) == (0, 5, 5 * 32)
    assert found["is_pooled"] and found["output_tokens"] == 0
    assert all(0 < one["e2el_ms"] < 1e5 for one in result["requests"])
    assert "output tokens" not in capsys.readouterr().out
    status, result = bench(tmp_path, "latency", folder, "--num-iters", "2", "--batch-size", "3")
    found = result["results"]
    assert (status, found["output_tokens_per_s"], found["step_ms"]) == (0, None, {})
    assert found["requests_per_s"] == pytest.approx(3e3 / found["latency_ms"]["mean"])


def test_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-prompts", "5", "--num-warmups", "1", "--input-len", "32", "--output-len", "6"]
    status, result = bench(
        tmp_path, "throughput", *words, "--prefix-len", "16", "--block-size", "8"
    )
    found = result["results"]
    assert (status, found["completed"], found["failed"]) == (0, 5, 0)
    assert (found["prompt_tokens"], found["output_tokens"]) == (5 * 48, 5 * 6)
    assert found["cached_prompt_tokens"] == 5 * 16  # the warm-up had the shared prefix
    assert found["requests_per_s"] == pytest.approx(5 / found["duration_s"])
    assert result["settings"]["engine"] == {"block_size": 8}
    assert "output tokens per second" in capsys.readouterr().out
