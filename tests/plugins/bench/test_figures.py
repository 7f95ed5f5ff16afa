"""Percentiles, overlap, arrivals and the figures of a run, by hand-computed numbers."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchPrompt
from dovetail_plugins.bench.answers import RequestOutcome
from dovetail_plugins.bench.arrival import arrival_times_s
from dovetail_plugins.bench.metrics import checked_names, details, figures, parsed_goodput
from dovetail_plugins.bench.report import number, pairs_of, settings_of, table
from dovetail_plugins.bench.settings import ReportFlags, TargetFlags
from dovetail_plugins.bench.stats import parsed_percentiles, peak_overlap, percentile, summary
from dovetail_plugins.plot import draw_distributions


def test_percentiles_are_linear_between_neighbours() -> None:
    ordered = [10.0, 20.0, 30.0, 40.0]
    assert [percentile(ordered, share) for share in (0, 50, 100)] == [10.0, 25.0, 40.0]
    assert percentile(ordered, 90) == pytest.approx(37.0)
    assert percentile([7.0], 99) == 7.0


def test_percentiles_are_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    values = sorted((17 * i * i) % 101 / 7 for i in range(37))
    for share in (1, 12.5, 50, 90, 99.9):
        assert percentile(values, share) == pytest.approx(float(numpy.percentile(values, share)))


def test_a_summary() -> None:
    found = summary([4.0, 2.0, 9.0, 5.0], [50, 99.9])
    assert found["mean"] == 5.0
    assert found["median"] == found["p50"] == 4.5
    assert found["std"] == pytest.approx(math.sqrt(6.5))
    assert (found["min"], found["max"]) == (2.0, 9.0)
    assert found["p99.9"] == pytest.approx(5 + 4 * 0.997)
    assert summary([], [50]) == {}


def test_overlap() -> None:
    assert peak_overlap([(0, 2), (1, 3), (2, 4), (5, 6)]) == 2
    assert peak_overlap([]) == 0


def test_words_are_checked() -> None:
    assert parsed_percentiles(["50", "p99.9", "50"], "--x") == [50.0, 99.9]
    assert parsed_goodput(["ttft:200", "tpot:50"]) == {"ttft": 200.0, "tpot": 50.0}
    assert checked_names(["itl", "ttft", "itl"]) == ("itl", "ttft")
    assert pairs_of(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    for wrong in (
        lambda: parsed_percentiles(["101"], "--x"),
        lambda: parsed_percentiles(["many"], "--x"),
        lambda: parsed_goodput(["itl:3"]),
        lambda: parsed_goodput(["ttft"]),
        lambda: parsed_goodput(["ttft:-1"]),
        lambda: checked_names(["latency"]),
        lambda: pairs_of(["a"]),
    ):
        with pytest.raises(ConfigError):
            wrong()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_between_arrivals(burstiness: float) -> None:
    times = arrival_times_s(20001, rate_per_s=50.0, burstiness=burstiness, seed=1)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0.0
    assert min(gaps) >= 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    variation = statistics.pstdev(gaps) / statistics.fmean(gaps)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_poisson_process_has_as_much_variance_as_arrivals() -> None:
    times = arrival_times_s(20000, rate_per_s=10.0, seed=2)
    seconds = [0] * (int(times[-1]) + 1)
    for at_s in times:
        seconds[int(at_s)] += 1
    assert statistics.pvariance(seconds) == pytest.approx(statistics.fmean(seconds), rel=0.1)


def test_arrivals_are_a_function_of_the_seed() -> None:
    draw = [arrival_times_s(5, rate_per_s=1.0, seed=seed) for seed in (3, 3, 4)]
    assert draw[0] == draw[1] != draw[2]
    assert arrival_times_s(3, rate_per_s=None) == [0.0, 0.0, 0.0]


ANSWERS = [
    # starts at 0, first token after 100 ms, then 4 tokens in 200 ms, ends at 0.4
    RequestOutcome(start_s=0.0, end_s=0.4, arrivals=((0.1, 1), (0.3, 4)), prompt_tokens=10,
           output_tokens=5, finish_reason="length"),
    RequestOutcome(start_s=0.2, end_s=1.0, arrivals=((0.5, 1), (0.9, 2)), output_tokens=3,
           finish_reason="stop"),
    RequestOutcome(start_s=0.6, end_s=2.0, error="it broke"),
]  # fmt: skip
PROMPTS = [
    BenchPrompt(prompt=(1, 2), output_tokens=5, prompt_tokens=2),
    BenchPrompt(prompt="x", output_tokens=5, prompt_tokens=7),
    BenchPrompt(prompt="x", output_tokens=5, prompt_tokens=9),
]


def test_the_figures_of_a_run() -> None:
    found = figures(ANSWERS, PROMPTS, percentiles=[50], limits_ms={"ttft": 250, "tpot": 60})
    assert (found["requests"], found["completed"], found["failed"]) == (3, 2, 1)
    assert found["errors"] == {"it broke": 1}
    assert found["duration_s"] == pytest.approx(2.0)
    assert found["prompt_tokens"] == 10 + 7  # the server's count, else the dataset's
    assert found["output_tokens"] == 8
    assert found["other_length"] == 1
    assert found["distinct_prompts"] == 2
    assert found["requests_per_s"] == pytest.approx(1.0)
    assert found["output_tokens_per_s"] == pytest.approx(4.0)
    assert found["total_tokens_per_s"] == pytest.approx(12.5)
    assert found["goodput_requests_per_s"] == pytest.approx(0.5)
    assert found["peak_concurrency"] == 2
    assert found["mean_concurrency"] == pytest.approx((0.4 + 0.8 + 1.4) / 2)
    assert found["ttft_ms"]["mean"] == pytest.approx(200)
    assert found["tpot_ms"]["max"] == pytest.approx(200)
    assert found["itl_ms"]["mean"] == pytest.approx((4 * 50 + 2 * 200) / 6)
    assert found["e2el_ms"]["median"] == pytest.approx(600)


def test_a_run_in_which_all_failed_has_figures_too() -> None:
    found = figures(ANSWERS[2:], PROMPTS[2:], percentiles=[50], limits_ms={})
    assert found["completed"] == 0
    assert found["goodput_requests_per_s"] is None
    assert found["ttft_ms"] == {}


def test_details_count_from_the_first_start() -> None:
    rows = details(ANSWERS[1:])
    assert [row["start_s"] for row in rows] == pytest.approx([0.0, 0.4])
    assert rows[0]["itl_ms"] == pytest.approx([200, 200])
    assert rows[1]["error"] == "it broke"


def test_the_key_is_not_written_down() -> None:
    written = settings_of(TargetFlags(api_key="secret"), ReportFlags(label="a"))
    assert written["api_key"] == "***"
    assert written["label"] == "a"


def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.png"
    draw_distributions(str(path), "title", {"a (ms)": [3.0, 1.0, 2.0], "b (ms)": [], "c": [1.0]})
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_table_has_one_width() -> None:
    text = table("x", [("requests", number(12345)), "heading", ("rate", number(None))])
    assert len({len(line) for line in text.splitlines()}) == 1
    assert "12,345" in text
