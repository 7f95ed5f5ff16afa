"""Stat loggers: every metric of the reference under two names, and the log line adds up."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.errors import ConfigError
from dovetail.interfaces.stats import Caller, StepStats, TokenStats
from dovetail.observability import metrics
from dovetail_plugins.stat_loggers.jsonl import RequestLines
from dovetail_plugins.stat_loggers.log import LogStats
from dovetail_plugins.stat_loggers.prometheus import PrometheusStats
from dovetail_testing.fakes.objects import request_stats, step_stats

REFERENCE = json.loads(
    (Path(__file__).resolve().parents[1] / "reference" / "metrics.json").read_text()
)
STATED_BUCKETS = {"iteration_tokens_total": [1, 8, 16, 32, 64, 128, 256, 512]}


def step(**counts: int) -> StepStats:
    usual = {
        "num_running": 2, "num_waiting": 1, "kv_usage": 0.25, "step_tokens": 10,
        "generated_tokens": 2, "prompt_tokens": 8, "prefix_queried_tokens": 8,
        "prefix_hit_tokens": 4,
    }  # fmt: skip
    return StepStats(**(usual | counts))


def families() -> dict[str, Any]:
    """Return what a Prometheus server reads, by family; counters without _total."""
    text = metrics.exposition().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def let_a_minute_pass(line: LogStats) -> None:
    """Act as if the last line had been written a minute earlier. Mutates: line"""
    line._since_s -= 60


def family_of(row: dict[str, Any]) -> str:
    name: str = row["name"]
    return name.removesuffix("_total") if row["type"] == "counter" else name


def values(family: Any, model: str) -> dict[str, float]:
    """Return sample name -> value for one model."""
    return {s.name: s.value for s in family.samples if s.labels.get("model_name") == model}


@pytest.mark.parametrize("prefix", ["dovetail:", "vllm:"])
def test_every_metric_of_the_reference_is_there_under_both_names(prefix: str) -> None:
    stats = PrometheusStats(PrometheusStats.Options(shows_hidden=True), "a model", 4096)
    stats.expect((0,))
    found = families()
    assert len(REFERENCE) == 35
    for row in REFERENCE:
        family = found[family_of(row).replace("vllm:", prefix)]
        assert family.type == row["type"], family.name
        if family.name != f"{prefix}lora_requests_info":
            assert all({"model_name", "engine"} <= set(s.labels) for s in family.samples), family
        assert family.samples, family.name
    for name, bounds in STATED_BUCKETS.items():
        samples = found[prefix + name].samples
        ends = [float(s.labels["le"]) for s in samples if s.name.endswith("_bucket")]
        assert sorted(set(ends)) == [*bounds, math.inf]


def test_deprecated_metrics_are_shown_only_when_asked_for() -> None:
    code = (
        "from dovetail.observability import metrics\n"
        "from dovetail_plugins.stat_loggers.prometheus import PrometheusStats as P\n"
        "from dovetail_testing.fakes.objects import request_stats, step_stats\n"
        "p = P(P.Options(), 'm', 64)\n"
        "p.step(step_stats(step_tokens=1)); p.request(request_stats())\n"
        "print(metrics.exposition().decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True, env={"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    found = {family.name for family in text_string_to_metric_families(done.stdout)}
    for row in REFERENCE:
        assert (family_of(row) in found) is not row["deprecated"], row["name"]


def test_numbers_stand_under_both_names() -> None:
    stats = PrometheusStats(PrometheusStats.Options(shows_hidden=True), "vllm: dovetail:", 4096)
    stats.step(step())
    stats.tokens(TokenStats(prompt_tokens=8, generated_tokens=3))
    stats.request(request_stats())
    stats.request(request_stats("r2", "error"))
    found = families()
    for prefix in ("dovetail:", "vllm:"):
        for name, value in {
            "prompt_tokens_total": 8, "generation_tokens_total": 3,
            "gpu_cache_usage_perc": 0.25, "gpu_prefix_cache_hit_rate": 0.5,
            "request_success_total": 0,  # the last sample: no request was aborted
        }.items():  # fmt: skip
            family = found[prefix + name.removesuffix("_total")]
            assert values(family, "vllm: dovetail:")[prefix + name] == value
        first = values(found[prefix + "time_to_first_token_seconds"], "vllm: dovetail:")
        assert first[f"{prefix}time_to_first_token_seconds_count"] == 2
        reasons = {
            s.labels["finished_reason"]: s.value
            for s in found[f"{prefix}request_success"].samples
            if s.labels["model_name"] == "vllm: dovetail:"
        }
        assert reasons == {"stop": 1, "length": 0, "abort": 0}
    faults = values(found["dovetail:faults"], "vllm: dovetail:")
    assert faults == {"dovetail:faults_total": 1}
    assert "vllm:faults" not in found


def test_what_requests_ask_for_and_get_is_summed() -> None:
    stats = PrometheusStats(PrometheusStats.Options(), "summed", 4096)
    one = msgspec.structs.replace(request_stats(), n=3, longest_tokens=2)
    for _ in range(2):
        stats.request(one)
    found = families()
    for name, total in {
        "request_params_n": 6, "request_params_max_tokens": 32, "request_prompt_tokens": 24,
        "request_generation_tokens": 6, "request_max_num_generation_tokens": 4,
        "request_queue_time_seconds": 0.02, "request_prefill_time_seconds": 0.4,
        "request_decode_time_seconds": 0.6, "request_inference_time_seconds": 1.0,
        "e2e_request_latency_seconds": 1.02, "time_to_first_token_seconds": 0.42,
        "time_per_output_token_seconds": 0.6,
    }.items():  # fmt: skip
        family = values(found[f"vllm:{name}"], "summed")
        assert family[f"vllm:{name}_sum"] == pytest.approx(total), name
    cached = values(found["dovetail:cached_prompt_tokens"], "summed")
    assert cached == {"dovetail:cached_prompt_tokens_total": 8}


def test_drafts_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    stats, line = (
        PrometheusStats(PrometheusStats.Options(), "drafting", 4096),
        LogStats(LogStats.Options(), "m", 4096),
    )
    at = {"drafted_at": (3, 3, 3, 2, 1), "accepted_at": (3, 2, 1, 0, 0)}
    let_a_minute_pass(line)
    with caplog.at_level(logging.INFO, "dovetail.stats"):
        for target in (stats, line):
            target.step(step(drafts=3, draft_tokens=12, accepted_tokens=6, **at))
    text = metrics.exposition().decode()
    for name, value in {
        "num_drafts_total": 3.0,
        "num_draft_tokens_total": 12.0,
        "num_accepted_tokens_total": 6.0,
        "num_emitted_tokens_total": 9.0,
        "draft_acceptance_rate": 0.5,
        "efficiency": 0.6,
    }.items():
        assert f'vllm:spec_decode_{name}{{engine="0",model_name="drafting"}} {value}' in text
    labels = '{engine="0",model_name="drafting",position='
    for name, counts in {"draft": (3, 3, 3, 2, 1), "accepted": (3, 2, 1, 0, 0)}.items():
        for place, count in enumerate(counts):
            line_of = f'spec_decode_num_{name}_tokens_per_pos_total{labels}"{place}"}} {count}.0'
            assert f"dovetail:{line_of}" in text
    assert f'vllm:spec_decode_num_accepted_tokens_per_pos_total{labels}"1"}} 2.0' in text
    kept = "drafts kept 6 of 12 (50%; by position 100% 67% 33% 0% 0%)"
    assert f"preemptions 0, {kept}" in caplog.text
    with caplog.at_level(logging.INFO, "dovetail.stats"):
        let_a_minute_pass(line)
        line.step(step(drafts=1, draft_tokens=1, drafted_at=(1,), accepted_at=(0,)))
    assert "drafts kept 0 of 1 (0%; by position 0%)" in caplog.text


def test_numbers_of_several_engines_are_told_apart_and_logged_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats = PrometheusStats(PrometheusStats.Options(), "engines", 4096)
    stats.expect((4, 5))
    line = LogStats(LogStats.Options(), "m", 4096)
    let_a_minute_pass(line)
    with caplog.at_level(logging.INFO, "dovetail.stats"):
        for engine in (4, 5):
            stats.step(step(engine=engine, num_running=engine, preemptions=engine - 4))
        stats.request(msgspec.structs.replace(request_stats(), engine=5))
        line.step(step(engine=4, num_running=1))
        let_a_minute_pass(line)
        line.step(step(engine=5, num_running=5))
    text = metrics.exposition().decode()
    for engine, finished in ((4, 0.0), (5, 1.0)):
        labels = f'engine="{engine}",model_name="engines"'
        assert f"vllm:num_requests_running{{{labels}}} {engine}.0" in text
        assert f"vllm:num_preemptions_total{{{labels}}} {engine - 4}.0" in text
        success = f'vllm:request_success_total{{engine="{engine}",finished_reason="stop",'
        assert f'{success}model_name="engines"}} {finished}' in text
    assert "running 6, waiting" in caplog.text


def test_the_log_line_is_written_once_per_interval(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("dovetail_plugins.stat_loggers.log.time.monotonic", lambda: now[0])
    stats = LogStats(LogStats.Options(interval_s=10), "m", 4096)
    with caplog.at_level(logging.INFO, "dovetail.stats"):
        stats.step(step())
        now[0] += 5
        stats.step(step())
        assert not caplog.records
        now[0] += 5
        stats.step(step())
        assert "prompt 2.4 tokens/s, generated 0.6 tokens/s, running 2, waiting 1" in caplog.text
        now[0] += 60
        stats.flush()
    assert len(caplog.records) == 1


def test_every_request_is_a_json_line(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    lines = RequestLines(RequestLines.Options(path=str(file)), "mine", 100)
    assert file.read_text() == ""
    caller = Caller(path="/v1/completions", traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    lines.request(msgspec.structs.replace(request_stats(), caller=caller))
    file.rename(tmp_path / "moved.jsonl")
    failed = msgspec.structs.replace(
        request_stats(finish_reason="error"), error="NaN\nlogits", generated_tokens=0
    )
    lines.request(failed)
    one = json.loads((tmp_path / "moved.jsonl").read_text())
    assert (one["trace_id"], one["path"], one["model"]) == ("ab" * 16, "/v1/completions", "mine")
    (text,) = file.read_text().splitlines()
    two = json.loads(text)
    assert (two["finish_reasons"], two["error"], two["ttft_s"]) == (["error"], "NaN\nlogits", None)
    with pytest.raises(ConfigError, match="cannot write"):
        RequestLines(RequestLines.Options(path=str(tmp_path / "no" / "file")), "mine", 100)


def test_adapters_in_use_are_the_labels_of_one_series() -> None:
    stats = PrometheusStats(PrometheusStats.Options(), "with adapters", 4096)
    stats.step(step_stats())
    # The labels name no model: other tests of this process may have left series of their own.
    earlier = [s.labels for s in families()["vllm:lora_requests_info"].samples]
    assert {"max_lora": "0", "waiting_lora_adapters": "", "running_lora_adapters": ""} in earlier

    def shown() -> list[tuple[dict[str, str], float]]:
        found = families()["vllm:lora_requests_info"].samples
        return [(s.labels, s.value) for s in found if s.labels not in earlier]

    def tell(engine: int, running: tuple[str, ...], waiting: tuple[str, ...] = ()) -> None:
        stats.step(
            step_stats(
                engine=engine, running_adapters=running, waiting_adapters=waiting, max_adapters=7
            )
        )

    before_s = time.time()
    tell(0, ("b", "a"), ("c",))
    tell(1, ("d", "a"))
    ((labels, since_s),) = shown()
    assert labels == {
        "max_lora": "7",
        "waiting_lora_adapters": "c",
        "running_lora_adapters": "a,b,d",
    }
    assert before_s - 1 <= since_s <= time.time()
    tell(0, ())
    tell(1, ())
    ((labels, _),) = shown()
    assert labels["running_lora_adapters"] == labels["waiting_lora_adapters"] == ""
