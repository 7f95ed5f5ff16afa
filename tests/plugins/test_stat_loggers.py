"""Stat loggers: the metrics carry vLLM's names, and the log line adds up."""

from __future__ import annotations

import logging

import pytest

from dovetail.interfaces.stats import StepStats
from dovetail.observability import metrics
from dovetail.testing.fakes import request_stats
from dovetail_plugins.stat_loggers.log import LogStats
from dovetail_plugins.stat_loggers.prometheus import PrometheusStats

NAMES = """\
cpu_cache_usage_perc cpu_prefix_cache_hit_rate e2e_request_latency_seconds
generation_tokens_total gpu_cache_usage_perc gpu_prefix_cache_hit_rate gpu_prefix_cache_hits
gpu_prefix_cache_queries iteration_tokens_total lora_requests_info
model_execute_time_milliseconds model_forward_time_milliseconds num_preemptions_total
num_requests_running num_requests_swapped num_requests_waiting prompt_tokens_total
request_decode_time_seconds request_generation_tokens request_inference_time_seconds
request_max_num_generation_tokens request_params_max_tokens request_params_n
request_prefill_time_seconds request_prompt_tokens request_queue_time_seconds
request_success_total spec_decode_draft_acceptance_rate spec_decode_efficiency
spec_decode_num_accepted_tokens_total spec_decode_num_draft_tokens_total
spec_decode_num_emitted_tokens_total spec_decode_num_drafts_total
time_in_queue_requests time_per_output_token_seconds
time_to_first_token_seconds"""


def step(**counts: int) -> StepStats:
    return StepStats(
        num_running=2, num_waiting=1, kv_usage=0.25, step_tokens=10, generated_tokens=2,
        prompt_tokens=8, prefix_queried_tokens=8, prefix_hit_tokens=4, **counts,
    )  # fmt: skip


def test_metrics_carry_the_known_names() -> None:
    stats = PrometheusStats(None, "a model", 4096)
    stats.step(step())
    stats.request(request_stats())
    text = metrics.exposition().decode()
    for name in NAMES.split():
        assert f"# TYPE vllm:{name}" in text, name
    assert 'vllm:prompt_tokens_total{model_name="a model"} 8.0' in text
    assert 'vllm:gpu_cache_usage_perc{model_name="a model"} 0.25' in text
    assert 'vllm:gpu_prefix_cache_hit_rate{model_name="a model"} 0.5' in text
    assert 'finished_reason="stop",model_name="a model"} 1.0' in text
    assert 'vllm:iteration_tokens_total_bucket{le="512.0",model_name="a model"} 1.0' in text
    assert 'vllm:time_to_first_token_seconds_count{model_name="a model"} 1.0' in text


def test_drafts_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    stats, line = PrometheusStats(None, "drafting", 4096), LogStats(LogStats.Options(), "m", 4096)
    line._since_s -= 60
    with caplog.at_level(logging.INFO, "dovetail.stats"):
        for target in (stats, line):
            target.step(step(drafts=3, draft_tokens=12, accepted_tokens=6))
    text = metrics.exposition().decode()
    for name, value in {
        "num_drafts_total": 3.0,
        "num_draft_tokens_total": 12.0,
        "num_accepted_tokens_total": 6.0,
        "num_emitted_tokens_total": 9.0,
        "draft_acceptance_rate": 0.5,
        "efficiency": 0.6,
    }.items():
        assert f'vllm:spec_decode_{name}{{model_name="drafting"}} {value}' in text
    assert "preemptions 0, drafts kept 6 of 12 (50%)" in caplog.text


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
