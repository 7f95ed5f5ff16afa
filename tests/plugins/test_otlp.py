"""Traces: spans as a collector gets them, and a collector that is not there."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest
from msgspec import structs

from dovetail.config.config import Config
from dovetail.config.rules.selections import select_stat_loggers
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.stats import Caller, RequestStats, RequestTimes
from dovetail_plugins.stat_loggers._otlp_spans import phases_of
from dovetail_plugins.stat_loggers.otlp import OtlpTraces
from dovetail_testing.fakes.objects import request_stats
from support.otlp_collector import Collector, attributes_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
URL = "http://127.0.0.1:9/v1/traces"
"""Nobody listens there."""


def stats(reason: str = "stop", traceparent: str = "", **changes: object) -> RequestStats:
    now_s = time.monotonic()
    times = RequestTimes(
        arrival_s=now_s - 1.0, scheduled_s=now_s - 0.9, first_token_s=now_s - 0.6,
        last_token_s=now_s - 0.1, ended_s=now_s,
    )  # fmt: skip
    caller = Caller(path="/v1/chat/completions", traceparent=traceparent, tracestate="k=v")
    made = structs.replace(request_stats(finish_reason=reason), times=times, caller=caller)
    return structs.replace(made, **changes)


def sent(*requests: RequestStats, **options: object) -> Collector:
    """Return a closed collector that got these requests' spans."""
    with Collector() as collector:
        url = f"http://{collector.address}/v1/traces"
        traces = OtlpTraces(OtlpTraces.Options(endpoint=url, **options), "a model", 4096)
        for request in requests:
            traces.request(request)
        traces.close()
    return collector


def test_a_request_is_a_server_span_with_three_phases() -> None:
    sampling = SamplingParams(temperature=0.5, top_p=0.9, top_k=7, seed=3, stop=("x",))
    collector = sent(stats(traceparent=f"00-{TRACE}-{PARENT}-01", sampling=sampling))
    *children, span = collector.spans()
    assert collector.paths == {"/v1/traces"}
    assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == PARENT
    assert (span.name, span.kind, span.trace_state) == (
        "chat a model",
        span.SPAN_KIND_SERVER,
        "k=v",
    )
    assert [child.name for child in children] == ["queue", "prefill", "decode"]
    start_ns = span.start_time_unix_nano
    for child in children:
        assert child.trace_id == span.trace_id and child.parent_span_id == span.span_id
        assert child.start_time_unix_nano == start_ns
        start_ns = child.end_time_unix_nano
    seconds = [(c.end_time_unix_nano - c.start_time_unix_nano) / 1e9 for c in children]
    assert seconds == pytest.approx([0.1, 0.3, 0.5], abs=1e-5)
    assert span.end_time_unix_nano - start_ns == pytest.approx(1e8, abs=1e4)
    assert abs(span.end_time_unix_nano - time.time_ns()) < 30e9  # wall-clock time
    assert span.status.code == span.status.STATUS_CODE_UNSET
    found = attributes_of(span)
    assert found.items() >= {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "a model",
        "gen_ai.request.max_tokens": 16, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9, "gen_ai.request.top_k": 7, "gen_ai.request.seed": 3,
        "gen_ai.request.stop_sequences": ["x"], "gen_ai.request.id": "r",
        "gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"], "gen_ai.latency.time_to_first_token": 0.21,
        "gen_ai.latency.e2e": 0.51, "url.path": "/v1/chat/completions",
    }.items()  # fmt: skip
    assert "gen_ai.latency.time_in_model_forward" not in found
    assert collector.resources()[0]["service.name"] == "dovetail"


def test_opentelemetrys_own_variables_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    found = sent(stats()).resources()[0]
    assert (found["service.name"], found["deployment.environment"]) == ("mine", "test")


def test_without_a_good_traceparent_a_trace_begins() -> None:
    spans = sent(
        stats(), stats(traceparent="rubbish"), structs.replace(stats(), caller=None)
    ).spans()
    roots = [span for span in spans if not span.parent_span_id]
    assert len(roots) == 3 and len({span.trace_id for span in spans}) == 3


def test_what_the_caller_does_not_sample_is_not_sent() -> None:
    assert sent(stats(traceparent=f"00-{TRACE}-{PARENT}-00")).spans() == []


def test_bad_ends_have_a_status() -> None:
    spans = sent(stats("abort"), stats("error", error="NaN in row 3")).spans()
    bad = [span.status for span in spans if span.kind == span.SPAN_KIND_SERVER]
    assert [status.code for status in bad] == [2, 2]
    assert bad[0].message.startswith("aborted") and bad[1].message == "NaN in row 3"


def test_detail_is_told_when_asked_for() -> None:
    detail = ("model", "worker")
    span = sent(stats(forward_s=0.25, execute_s=0.5), detail=detail).spans()[-1]
    found = attributes_of(span)
    assert found["gen_ai.latency.time_in_model_forward"] == 0.25
    assert found["gen_ai.latency.time_in_model_execute"] == 0.5


@pytest.mark.parametrize(
    ("times", "ends"),
    [
        ({}, {"queue": 9.0}),
        ({"scheduled_s": 2.0}, {"queue": 2.0, "prefill": 9.0}),
        (
            {"scheduled_s": 2.0, "first_token_s": 3.0, "last_token_s": 3.0},
            {"queue": 2.0, "prefill": 3.0, "decode": 3.0},
        ),
        (  # clocks that disagree never put a child outside its parent
            {"scheduled_s": 0.5, "first_token_s": 3.0, "last_token_s": 9.5},
            {"queue": 1.0, "prefill": 3.0, "decode": 9.0},
        ),
    ],
)
def test_phases_end_where_the_request_got_to(times: dict[str, float], ends: object) -> None:
    found = phases_of(RequestTimes(arrival_s=1.0, ended_s=9.0, **times))
    assert {phase.name: phase.end_s for phase in found} == ends
    assert found[0].start_s == 1.0


def test_a_collector_that_is_not_there_costs_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traces = OtlpTraces(OtlpTraces.Options(endpoint=URL), "m", 4096)
    start_s = time.perf_counter()
    with caplog.at_level(logging.INFO):
        for _ in range(600):  # more than a batch
            traces.request(stats())
        assert time.perf_counter() - start_s < 1.0
        traces.close()
    assert time.perf_counter() - start_s < 2.5
    (told,) = [record for record in caplog.records if record.name.startswith("dovetail")]
    assert "traces do not reach the collector" in told.getMessage()
    assert "refused" in told.getMessage()
    assert not logging.getLogger("opentelemetry").propagate


def test_a_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.from_fields({"otlp_traces_endpoint": "h:4318"})
    assert select_stat_loggers(config.observability, config.plugin)[-1].name == "otlp"
    monkeypatch.setattr("dovetail.interfaces.plugin._is_installed", lambda name: False)
    with pytest.raises(ConfigError) as caught:
        select_stat_loggers(config.observability, config.plugin)
    assert "--otlp-traces-endpoint" in (caught.value.where or "")
    assert caught.value.fix == 'run `pip install "dovetail-llm[tracing]"`.'


def test_nothing_of_it_is_imported_unless_asked_for() -> None:
    code = (
        "import sys\n"
        "from dovetail.config.config import Config\n"
        "from dovetail.config.rules.selections import select_stat_loggers\n"
        "from dovetail.registry import admin\n"
        "config = Config()\n"
        "for selection in select_stat_loggers(config.observability, config.plugin):\n"
        "    admin.load_selection(selection)(admin.build_options(selection), 'm', 64)\n"
        "import dovetail_plugins.stat_loggers.otlp\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True, env={"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert done.stdout.strip() == "[]"
