"""`bench compare` and `bench startup`: ratios, spreads and time lines, by hand-computed numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail_plugins.bench.compare import compare, values_of
from dovetail_plugins.bench.startup import lines_of, spans_of
from dovetail_plugins.bench.stats import summary
from dovetail_plugins.plot import Span


def result(times: list[float], *, rate: float = 10.0, keeps: bool = False, **more: Any) -> Any:
    """Return a result of `bench serve` with these times to the first token."""
    found: dict[str, Any] = {
        "kind": "serve",
        "label": "one",
        "settings": {"input_len": 8, "engine": {}},
        "results": {"failed": 0, "requests_per_s": rate, "ttft_ms": summary(times, [90])},
    }
    if keeps:
        found["requests"] = [{"ttft_ms": time, "itl_ms": [time, 1.0]} for time in times]
    return found | more


def written(folder: Path, name: str, found: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(found))
    return str(path)


def test_a_ratio_is_b_over_a() -> None:
    rows = {row.name: row for row in compare([result([1, 2, 3])], [result([2, 4, 9], rate=5)])}
    assert list(rows) == ["requests_per_s", "mean ttft_ms", "median ttft_ms", "p90 ttft_ms"]
    assert rows["requests_per_s"].ratio == 0.5
    assert rows["mean ttft_ms"].ratio == 2.5
    assert (rows["median ttft_ms"].a, rows["median ttft_ms"].b) == (2, 4)
    assert rows["median ttft_ms"].low is None


def test_several_runs_spread_over_their_pairs() -> None:
    a, b = [result([1]), result([2])], [result([3]), result([4]), result([5])]
    row = {row.name: row for row in compare(a, b)}["median ttft_ms"]
    assert (row.a, row.b, row.low, row.high) == (1.5, 4, 1.5, 5)


def test_kept_values_are_drawn_again() -> None:
    near = [100 + n % 7 for n in range(200)]
    a, b = result(near, keeps=True), result([2.0 * one for one in near], keeps=True)
    row = {row.name: row for row in compare([a], [b])}["mean ttft_ms"]
    assert row.low is not None and row.high is not None
    assert row.ratio == pytest.approx(2) and row.low < 2 < row.high
    assert row.high - row.low < 0.05
    wide = [1.0, 1000.0] * 100
    other = {row.name: row for row in compare([a], [result(wide, keeps=True)])}["mean ttft_ms"]
    assert other.low is not None and other.high is not None
    assert other.high - other.low > 10 * (row.high - row.low)


def test_times_between_tokens_are_of_all_requests() -> None:
    assert values_of(result([3.0, 4.0], keeps=True), "itl_ms") == [3.0, 1.0, 4.0, 1.0]
    assert values_of(result([3.0]), "ttft_ms") == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path, "a.json", result([1.0, 2.0]))
    slow = result([2.0, 4.0], settings={"input_len": 9, "engine": {}}, label="two")
    b = written(tmp_path, "b.json", slow)
    out = tmp_path / "out.json"
    assert main(["bench", "compare", a, b, "--output-json", str(out)]) == 0
    told = capsys.readouterr().out
    assert "A: one\nB: two\n" in told
    assert re.search(r"^median ttft ms +1\.50 +3\.00 +2\.000   -$", told, re.MULTILINE)
    assert "settings differ: input_len 8 and 9" in told and "no spread is known" in told
    figures = json.loads(out.read_text())["figures"]
    assert {"mean ttft_ms": 2.0}.items() <= {one["name"]: one["ratio"] for one in figures}.items()
    assert main(["bench", "compare", a, f"{b},{a}"]) == 0
    assert "0.500 to" not in capsys.readouterr().out.split("median")[0]


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path, "a.json", result([1.0]))
    other = written(tmp_path, "b.json", result([1.0], kind="latency"))
    for wrong, said in ((other, "different measurements"), (str(tmp_path / "c.json"), "c.json"),
                        (written(tmp_path, "d.json", []), "is not a result")):  # fmt: skip
        assert main(["bench", "compare", a, wrong]) == 2
        assert said in capsys.readouterr().err


METRICS = """\
dovetail:start_phase_seconds{phase="imports"} 0.5
dovetail:start_phase_began_seconds{phase="imports"} 0.0
dovetail:start_phase_seconds{phase="engine"} 3.0
dovetail:start_phase_began_seconds{phase="engine"} 1.0
dovetail:start_phase_seconds{phase="engine: weights"} 1.5
dovetail:start_phase_began_seconds{phase="engine: weights"} 2.5
dovetail:num_requests_running{engine="0",model_name="m"} 0.0
"""


def test_a_start_as_text() -> None:
    spans = spans_of(METRICS)
    assert spans == [
        Span("imports", 0.0, 0.5), Span("engine", 1.0, 3.0), Span("engine: weights", 2.5, 1.5)
    ]  # fmt: skip
    head, *rows, last = lines_of(spans)
    assert head.split() == ["phase", "began", "took"]
    assert [row.count("#") for row in rows] == [6, 36, 18]
    assert [row.index("#") - rows[0].index("#") for row in rows] == [0, 12, 30]
    assert last == "ready 4.00 s after the process was created"


def test_no_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--base-url", "http://127.0.0.1:9"]) == 1
    assert "no answer" in capsys.readouterr().err


def test_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from dovetail_plugins.plot import draw_parts, draw_timeline

    a = written(tmp_path, "a.json", result([1.0, 2.0], keeps=True))
    draw_timeline(str(tmp_path / "start.png"), "start", spans_of(METRICS))
    draw_parts(str(tmp_path / "parts.png"), "parts", {"weights": 1.5, "cache": 4.0}, "GiB", 8.0)
    assert main(["bench", "compare", a, a, "--plot", str(tmp_path / "ratios.png")]) == 0
    for name in ("start", "parts", "ratios"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
