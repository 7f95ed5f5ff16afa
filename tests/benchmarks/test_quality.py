"""benchmarks/quality.py: its figures, bars and table, and a whole run on the bundled demo model."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

ROOT = Path(__file__).resolve().parents[2]
VOCAB = 11


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an importer of the repository's benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def made_reference(module: ModuleType, folder: Path) -> tuple[Any, np.ndarray]:
    """Return a reference of two windows of 4 tokens, and its logits."""
    windows = [[1, 4, 2, 9], [1, 0, 3, 10]]
    reference = module.Reference(folder / "reference.f32", windows, VOCAB)
    logits = np.random.default_rng(0).normal(size=(6, VOCAB)).astype(np.float32) * 3
    reference.create()[:] = module.log_softmax(logits)
    return reference, logits


def test_the_reference_compared_with_itself_is_no_distance(load: Any, tmp_path: Path) -> None:
    module = load("quality_figures")
    reference, logits = made_reference(module, tmp_path)
    assert reference.num_bytes == (tmp_path / "reference.f32").stat().st_size
    comparison = module.Comparison(reference)
    comparison.add(logits[:4] + 5.0, 0)  # logits are the same whatever is added to all of a row
    comparison.add(logits[4:], 4)
    found = module.figures(comparison.found)
    assert (found["tokens"], found["top1"]) == (6, 1.0)
    assert (found["mean"], found["kl"], found["ppl_more"]) == pytest.approx((0, 0, 0), abs=1e-6)


def test_figures_are_those_of_the_definitions(load: Any, tmp_path: Path) -> None:
    module = load("quality_figures")
    reference, logits = made_reference(module, tmp_path)
    other = logits + np.random.default_rng(1).normal(size=logits.shape).astype(np.float32)
    comparison = module.Comparison(reference)
    comparison.add(other, 0)
    found = module.figures(comparison.found)
    exact = [one - np.log(np.exp(one).sum(1, keepdims=True)) for one in (logits, other)]
    tokens = [4, 2, 9, 0, 3, 10]
    right, own = (one[np.arange(6), tokens].astype(np.float64) for one in exact)
    assert found["ppl"] == pytest.approx(math.exp(-own.mean()), rel=1e-5)
    assert found["ppl_more"] == pytest.approx(math.exp(right.mean() - own.mean()) - 1, rel=1e-4)
    assert found["mean"] == pytest.approx(np.abs(own - right).mean(), rel=1e-5)
    assert found["p99"] == pytest.approx(np.quantile(np.abs(own - right), 0.99), rel=1e-5)
    divergence = (np.exp(exact[0]) * (exact[0] - exact[1])).sum(1).mean()
    assert found["kl"] == pytest.approx(divergence, rel=1e-5)
    assert found["top1"] == (logits.argmax(1) == other.argmax(1)).mean() < 1


def test_bars(load: Any) -> None:
    failures = load("quality_figures").failures
    row = {"ppl_more": -0.004, "mean": 0.07, "top1": 0.95}
    assert failures(row, {"ppl_more": 0.005}, None) == []
    assert failures(row, {"ppl_more": 0.002}, None) == ["ppl_more 0.40% > 0.20%"]
    assert failures(row, {"mean": 0.06}, None) == ["mean 0.070 > 0.060"]
    assert failures({**row, "mean": math.nan}, {"mean": 0.06}, None) != []
    peer = {"mean": 0.08, "top1": 0.96}
    assert failures(row, {"mean": 0.06}, peer) == ["top-1 95.00% < 96.00%"]


def test_table_and_custom_rows(load: Any) -> None:
    figures, quality = load("quality_figures"), load("quality")
    made = {"row": "a", "ppl": 9.0, "ppl_more": 0.01, "mean": 0.1, "p99": 1, "kl": 0.2, "top1": 0.5}
    lines = figures.table([{**made, "missed": ["mean"]}, {"row": "b", "error": "x|y"}]).splitlines()
    assert lines[2].startswith("| a | 9.000 | +1.00% | 0.1000 |")
    assert lines[2].endswith("| **fails**: mean |") and lines[3].endswith("| x\\|y |")
    assert {line.count(" | ") for line in (lines[0], lines[2], lines[3])} == {12}
    row = quality.custom_row("mine=bf16 --quantization int4")
    assert (row.name, row.checkpoint, row.flags) == ("mine", "bf16", ("--quantization", "int4"))
    assert len({row.name for row in quality.ROWS}) == len(quality.ROWS)


def test_tables_are_put_between_the_marks_of_a_page(load: Any, tmp_path: Path) -> None:
    quality, page = load("quality"), tmp_path / "page.md"
    line = {"model": "m.gguf", "threads": 2, "row": "float32", "error": "first"}
    later = {**line, "error": "later"}
    page.write_text(f"above\n{quality.BEGIN}\nold\n{quality.END}\nbelow\n")
    for _ in range(2):
        quality.put(quality.tables([line, {**line, "row": "file"}, later]), page)
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
    assert text.index("| file |") < text.index("| float32 |") < text.index("later |")
    assert "m.gguf" in text and "first |\n| float32" in text and text.count("later") == 1
    with pytest.raises(SystemExit, match="has no line"):
        quality.put("text", ROOT / "LICENSE")


def test_text_is_the_same_prose_for_everybody(load: Any) -> None:
    module = load("quality_reference")
    assert not set(module.TOPICS) & set(module.CALIBRATION)
    assert all(len(text) > 4000 for text in module.topics(module.TOPICS))


def run(folder: Path, rows: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a whole run on the demo model, by name."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.quality", str(DEMO_PATH), "--quick"),
            *("--rows", rows, "--threads", "1"),
            *("--work", str(folder), "--json", str(folder / "rows.jsonl")),
        ],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    lines = (folder / "rows.jsonl").read_text().splitlines()
    return {row["row"]: row for row in map(json.loads, lines)}


def test_a_run_on_the_demo_model(tmp_path: Path) -> None:
    """float32 is the reference over again, in prompts and in decoding."""
    by_name = run(tmp_path, "float32;llama.cpp")
    exact = by_name["float32"]
    assert exact["tokens"] == 2 * 511 and exact["decoding"]["tokens"] == 2 * 17
    assert max(exact["mean"], exact["decoding"]["mean"]) < 1e-4
    assert exact["top1"] > 0.999 and exact["kl"] < 1e-6
    assert exact["missed"] == [] and 0 < exact["weights_mib"] < exact["peak_mib"]
    assert "absent" in by_name["llama.cpp"]["error"]


@pytest.mark.full_only
def test_a_run_with_an_8_bit_cache_is_no_reference(tmp_path: Path) -> None:
    cached = run(tmp_path, "KV int8")["KV int8"]
    assert cached["mean"] > 1e-4 and cached["kl"] > 1e-6


@pytest.mark.full_only
def test_a_run_with_drafts(tmp_path: Path) -> None:
    drafted = run(tmp_path, "file, ngram drafts")["file, ngram drafts"]["decoding"]
    assert drafted["tokens"] == 2 * 17 and drafted["tokens_per_step"] >= 1
