"""benchmarks/peers: prompts, work per token, ratios, tables, who is missing. No peer is run."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
QWEN3 = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 32000,
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an importer of the package's modules, found as from the checkout's root."""
    monkeypatch.syspath_prepend(str(ROOT))

    def importer(name: str) -> ModuleType:
        return importlib.import_module(f"benchmarks.peers.{name}")

    return importer


def row(
    engine: str, number: int, rate: float, *, ours: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "engine": engine,
        "round": number,
        "threads": 2,
        "width": 8,
        "measure": "decode",
        "is_dovetail": ours,
        "step_tok_s": rate,
        "step_p10_ms": 1e3 / rate,
        "step_p50_ms": 1e3 / rate,
        "weights_gb_s": rate / 2,
        "limits": {"read_gb_s": 40.0, "foreign_share": 0.0},
        "foreign_share": 0.0,
        "peak_bytes": 1 << 20,
        **more,
    }


ROWS = [
    {"round": 0, "threads": 2, "probe": {"read_gb_s": 40.0}},
    {"round": 0, "threads": 2, "engine": "ours", "width": 8, "load_s": 1.0, "facts": {}},
    row("ours", 0, 30.0, ours=True),
    row("fast", 0, 20.0),
    row("slow", 0, 10.0),
    row("ours", 1, 33.0, ours=True, limits={"read_gb_s": 1.0, "foreign_share": 0.5}),
    row("fast", 1, 30.0),
    row("ours", 2, 99.0, ours=True),
    {
        "engine": "fast",
        "round": 2,
        "threads": 2,
        "width": 8,
        "measure": "decode",
        "error": "it ended",
    },
    row("other-width", 0, 500.0, width=4),
]


def test_prompts_have_the_length_and_encode_to_themselves(load: Any, tmp_path: Path) -> None:
    texts = (path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    load("make_models").train_bpe(texts, 1500).save(str(tmp_path / "tokenizer.json"))
    maker = load("prompts").PromptMaker(tmp_path)
    made = maker.make(5, 128, seed=3)
    assert [len(prompt.ids) for prompt in made] == [128] * 5
    assert all(maker.tokenizer.encode(prompt.text).ids == prompt.ids for prompt in made)
    assert len({prompt.text for prompt in made}) == 5
    assert maker.make(5, 128, seed=3) == made != maker.make(5, 128, seed=4)


def test_ratios_are_taken_within_a_round_and_against_the_best_of_the_width(load: Any) -> None:
    report = load("report")
    ours = report.by_round(ROWS, "ours", "decode", 2)
    fast = report.by_round(ROWS, "fast", "decode", 2)
    ratio = report.ratio_of(ours, fast, "step_tok_s")
    assert (ratio.smallest, ratio.largest) == pytest.approx((1.1, 1.5))
    assert ratio.median == pytest.approx(1.3)
    assert report.ratio_of(ours, {}, "step_tok_s") is None
    line = report.ratios(ROWS, 8, 2).splitlines()[2]
    assert line.startswith("| ours | decode | 1.30 (1.10-1.50) (fast); best peer missing: ")
    assert "slow 3.00 (3.00-3.00)" in line
    assert "other-width" not in line


def test_table_tells_the_share_of_the_probed_limit(load: Any) -> None:
    told = load("report").render(ROWS)
    ours = next(line for line in told.splitlines() if line.startswith("| ours | 33.0"))
    assert " 81 % " in ours  # the median of 15 and 49.5 GB/s, of 40; the second probe was disturbed
    assert told.index("| ours |") < told.index("| fast |") < told.index("| slow |")


def test_work_of_a_token(load: Any) -> None:
    shape = load("report").shape_of(QWEN3)
    norms = 28 * (2 * 1024 + 2 * 128) + 1024
    assert shape.step_weights == 473_235_456 - norms  # the count transformers gives for the model
    more = shape.operations(1025, 1) - shape.operations(1024, 1)
    assert more == 2 * shape.layer_weights + 4 * 28 * 16 * 128 * 1025
    assert shape.operations(1024, 2) - shape.operations(1024, 1) == more + 2 * 1024 * 32000


def test_figures_refuse_a_run_that_made_other_tokens(load: Any) -> None:
    report = load("report")
    shape = report.shape_of(QWEN3)
    answer = {"num_tokens": [4, 4], "wall_s": 2.0, "steps_s": [0.1, 0.1, 0.3]}
    figures = report.figures_of(shape, answer, 12, 4, 16)
    assert figures["total_tok_s"] == pytest.approx(16.0)
    assert figures["step_tok_s"] == pytest.approx(20.0)
    assert figures["step_p50_ms"] == pytest.approx(100.0)
    assert figures["weights_gb_s"] == pytest.approx(shape.step_weights * 2 / 0.1 / 1e9)
    assert "error" in report.figures_of(shape, answer | {"num_tokens": [4, 3]}, 12, 4, 16)
    assert math.isnan(report.percentile([], 0.5))


def test_only_steps_in_which_all_run_are_kept(load: Any) -> None:
    common = load("drivers.trace").common_steps
    assert common([[1, 2, 3, 4, 5], [3, 4, 5, 6]], 5) == [3, 4, 5]
    assert common([[3, 4, 5, 6], [1, 2, 3, 4, 5]], 5) == [3, 4, 5]
    assert common([[1, 2], []], 2) == []


def test_a_child_that_ended_counts_as_own(load: Any) -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass"
    with load("machine").Window(pids=[os.getpid()]) as window:
        subprocess.run([sys.executable, "-c", code], check=True)
    assert window.own_share * window.wall_s * (os.cpu_count() or 1) >= 0.25


@pytest.mark.parametrize(
    ("text", "name", "width", "flags"),
    [
        ("dovetail-int8: --quantization int8", "dovetail-int8", 8, ["--quantization", "int8"]),
        ("w@4: --quantization 'a b'", "w", 4, ["--quantization", "a b"]),
        ("plain:", "plain", 16, []),
        ("try-7: --x", "try-7", 16, ["--x"]),
    ],
)
def test_engine_argument(load: Any, text: str, name: str, width: int, flags: list[str]) -> None:
    engine = load("catalog").dovetail_engine(text)
    assert (engine.name, engine.width, engine.options["flags"]) == (name, width, flags)
    assert engine.is_dovetail


@pytest.mark.parametrize("text", ["no colon", "x@5: --y", "x@: "])
def test_wrong_engine_arguments_are_refused(load: Any, text: str) -> None:
    with pytest.raises(ValueError, match="--engine"):
        load("catalog").dovetail_engine(text)


def test_level_of_a_server(load: Any) -> None:
    serve = load("serve")
    timings = [
        serve.Timing(start_s=0.0, events_s=[1.0, 1.5, 2.0, 2.0], tokens=3),
        serve.Timing(start_s=1.0, events_s=[2.0, 2.5, 3.0], tokens=3),
    ]
    figures = serve.level_figures(4.0, timings, 3)
    assert figures["requests_s"] == 0.5
    assert figures["new_tok_s"] == 1.5
    assert figures["ttft_p50_ms"] == 1000.0
    assert figures["itl_p50_ms"] == figures["token_mean_ms"] == 500.0
    assert "error" in serve.level_figures(4.0, timings, 4)


def test_a_server_that_is_not_installed_has_a_line(load: Any, tmp_path: Path) -> None:
    serve = load("serve")
    make_models = load("make_models")
    texts = (path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    (tmp_path / "T").mkdir()
    make_models.train_bpe(texts, 1500).save(str(tmp_path / "T" / "tokenizer.json"))
    words = ["--models", str(tmp_path), "--venvs", str(tmp_path), "--rounds", "1"]
    words += ["--logs", str(tmp_path), "--out", str(tmp_path / "rows.jsonl"), "--quiet-wait-s", "0"]
    asked = serve.arguments_of([*words, "--peers", "vllm-bf16"])
    bench = serve.ServeBench(asked, [load("servers").SERVERS["vllm-bf16"]])
    bench.run()
    line = serve.table(bench.rows).splitlines()[-1]
    assert line.startswith("| vllm-bf16 | missing: not installed: no ")
    assert line.count("|") == serve.table([]).splitlines()[0].count("|")
