"""Profiling reaches every rank of every engine, from the flag to the traces."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail import LLM, SamplingParams
from dovetail.cli.main import main
from dovetail.errors import RequestError
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e

ENGINE: dict[str, Any] = {"use_tqdm_on_load": False, "kv_cache_memory_bytes": "8m"}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def names_in(trace: Path) -> Counter[str]:
    """Return how often each name is in a trace, of what took time."""
    data = trace.read_bytes()
    text = gzip.decompress(data) if trace.suffix == ".gz" else data
    events = json.loads(text)["traceEvents"]
    return Counter(event["name"] for event in events if event.get("ph") == "X")


def assert_holds_the_forward_pass(trace: Path) -> None:
    """Assert that a trace has steps, and what a forward pass consists of: native kernels, also of
    steps that are recorded, or torch's operators where there are none."""
    names = names_in(trace)
    steps = sum(count for name, count in names.items() if name.startswith("dovetail::step"))
    assert steps == names["dovetail::forward"] > 0
    native = sum(count for name, count in names.items() if name.startswith("dovetail::gemm_"))
    assert native + names["aten::linear"] >= 4 * steps


def told(answer: httpx.Response) -> str:
    """Return the sentence of a refusal because of what runs or does not."""
    assert answer.status_code == 409
    text: str = answer.json()["error"]["message"]
    return text


@pytest.mark.slow
def test_two_ranks_are_profiled_while_a_request_runs(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    args = ("--port", "0", "-tp", "2", "--profiler-config", str(folder))
    body = {"prompt": "once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with ServerProcess(*args, env={"OMP_NUM_THREADS": "1"}).wait_ready() as server:
        with server.client() as client, client.stream("POST", "/v1/completions", json=body) as got:
            chunks = got.iter_lines()
            next(chunks)
            assert "no profiler runs" in told(httpx.post(f"{server.url}/stop_profile"))
            assert httpx.post(f"{server.url}/start_profile").status_code == 200
            again = told(httpx.post(f"{server.url}/start_profile"))
            assert "a profiler has run for" in again and "stop it before" in again
            for _ in range(40):
                next(chunks)
            stopped = httpx.post(f"{server.url}/stop_profile", timeout=60)
            assert stopped.status_code == 200
            assert sum(1 for line in chunks if line.startswith("data:")) > 0  # it goes on
        words = ["bench", "serve", "--base-url", server.url, "--num-prompts", "1", "--profile"]
        found = set(folder.iterdir())
        assert main([*words, "--input-len", "4", "--output-len", "2"]) == 0
        traces = sorted(set(folder.iterdir()) - found)
        for trace in traces:
            assert_holds_the_forward_pass(trace)
            trace.unlink()
        assert len(traces) == 2
        traces = [Path(name) for name in stopped.json()["traces"]]
    assert sorted(folder.iterdir()) == sorted(traces)
    assert [trace.name.partition(".")[0] for trace in traces] == ["engine0_rank0", "engine0_rank1"]
    for trace in traces:
        assert_holds_the_forward_pass(trace)


@pytest.mark.slow
def test_every_engine_writes_its_trace(tmp_path: Path) -> None:
    settings = {"torch_profiler_dir": str(tmp_path), "torch_profiler_use_gzip": True}
    with LLM(data_parallel_size=2, cpu_cores="nobind", profiler_config=settings, **ENGINE) as llm:
        llm.start_profile()
        llm.generate(["a", "b", "c", "d"], GREEDY, use_tqdm=False)
        traces = [Path(name) for name in llm.stop_profile()]
    assert [trace.name.partition(".")[0] for trace in traces] == ["engine0_rank0", "engine1_rank0"]
    assert all(trace.name.endswith(".json.gz") for trace in traces)
    assert any(names_in(trace)["dovetail::forward"] for trace in traces)


def test_a_folder_that_cannot_be_written_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    settings: dict[str, Any] = {"profiler": "torch", "torch_profiler_dir": str(file / "traces")}
    settings |= {"torch_profiler_record_shapes": True, "torch_profiler_with_stack": True}
    with LLM(profiler_config=settings, **ENGINE) as llm:
        with pytest.raises(RequestError, match=r"rank 0: no trace can be written to .*traces"):
            llm.start_profile()
        with pytest.raises(RequestError, match="rank 0: no profiler runs"):
            llm.stop_profile()
        file.unlink()
        llm.start_profile()
        llm.generate(["a"], GREEDY, use_tqdm=False)
        (trace,) = map(Path, llm.stop_profile())
        assert_holds_the_forward_pass(trace)
        events = json.loads(trace.read_bytes())["traceEvents"]
        assert any("Input Dims" in event.get("args", {}) for event in events)
        assert any(event.get("cat") == "python_function" for event in events)
        llm.generate(["a"], GREEDY, use_tqdm=False)  # and everything is as before
        llm.start_profile()
        assert not names_in(Path(llm.stop_profile()[0]))["dovetail::forward"]


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_a_benchmark_is_profiled(command: str, tmp_path: Path) -> None:
    words = ["bench", command, "--profile", "--profiler-config", str(tmp_path)]
    words += ["--input-len", "8", "--output-len", "4"]
    few = {"latency": ["--num-iters", "1", "--num-iters-warmup", "1", "--batch-size", "1"]}
    assert main([*words, *few.get(command, ["--num-prompts", "2"])]) == 0
    (trace,) = tmp_path.iterdir()
    assert_holds_the_forward_pass(trace)


def test_a_benchmark_says_where_profiling_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--profile"]) == 2
    assert "--profiler-config" in capsys.readouterr().err
