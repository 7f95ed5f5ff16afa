"""benchmarks/peers: who could not run is told, AVX2 is held, and one failure stops nothing else."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ZEN_3 = "processor\t: 0\nmodel name\t: A\nflags\t\t: avx avx2 fma f16c\n\nprocessor\t: 1\n"
ZEN_4 = ZEN_3.replace("f16c", "f16c avx512f avx512_vnni")
CPUID = """
#include <cpuid.h>
#include <stdio.h>
int main(void) {
    unsigned a, b, c, d, e;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    __get_cpuid_count(7, 1, &e, &a, &c, &d);
    printf("%u %u %u", b >> 5 & 1, b >> 16 & 1, e >> 4 & 1); /* AVX2, AVX-512, AVX-VNNI */
}
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an importer of the package's modules, found as from the checkout's root."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.peers.{name}")


def row(engine: str, rate: float, *, ours: bool = False, measure: str = "decode") -> dict[str, Any]:
    return {
        "engine": engine,
        "round": 0,
        "threads": 1,
        "width": 8,
        "measure": measure,
        "is_dovetail": ours,
        "step_tok_s": rate,
        "total_tok_s": rate,
        "step_p10_ms": 1.0,
        "step_p50_ms": 1.0,
        "weights_gb_s": 1.0,
        "gflop_s": 1.0,
        "limits": {"read_gb_s": 2.0, "skipped": {"fp32_gflop_s": "too slow"}, "foreign_share": 0.0},
        "foreign_share": 0.0,
        "peak_bytes": 1 << 20,
    }


def test_a_ratio_says_which_of_the_usual_best_is_missing(load: Any) -> None:
    report = load("report")
    rows = [row("ours", 30.0, ours=True), row("xllamacpp-q8_0", 20.0), row("openvino-int8", 15.0)]
    assert report.best_missing(rows, 8, "decode", 1) == ""
    why = "not installed: no V/openvino/bin/python"
    absent = {"engine": "openvino-int8", "width": 8, "missing": why}
    assert report.best_missing([*rows[:2], absent], 8, "decode", 1) == (
        f"best peer missing: OpenVINO ({why})"
    )
    line = report.ratios([*rows[:2], absent], 8, 1).splitlines()[2]
    assert f"| 1.50 (1.50-1.50) (xllamacpp-q8_0); best peer missing: OpenVINO ({why}) |" in line
    assert "not asked for" in report.best_missing(rows[:2], 8, "decode", 1)
    machine = {"machine": {"sets": ["avx2", "avx512f"], "is_held": True}}
    assert report.best_missing([machine, *rows], 8, "decode", 1) == ""
    machine["machine"]["is_held"] = False  # then the wheel, built for AVX2, is not llama.cpp's best
    assert report.best_missing([machine, *rows], 8, "decode", 1) == (
        "best peer missing: llama.cpp built for this machine (not asked for)"
    )
    alone = report.ratios([rows[0], absent], 8, 1)
    assert "no peer ran; best peer missing: llama.cpp (not asked for), OpenVINO" in alone


def test_a_peer_without_a_figure_has_a_line_in_every_table(load: Any) -> None:
    report = load("report")
    context = {"round": 0, "threads": 1, "width": 8}
    rows = [
        {"engine": "gone", "width": 8, "missing": "not installed"},
        {"engine": "unwanted", "width": 8, "missing": load("catalog").NOT_ASKED},
        {"engine": "other width", "width": 4, "missing": "not installed"},
        context | {"engine": "broken", "error": "it ended"},
        row("ours", 30.0, ours=True),
        context | {"engine": "halfway", "measure": "batch8", "error": "no answer"},
        row("halfway", 9.0),
        row("ours", 90.0, ours=True, measure="batch8"),
    ]
    decode = report.table(rows, 8, "decode", 1)
    assert "| gone | missing: not installed |" in decode
    assert "| broken | missing: it ended |" in decode
    assert "| halfway | 9.0 |" in decode
    assert "Not asked for: unwanted." in decode
    assert "other width" not in decode
    batch = report.table(rows, 8, "batch8", 1)
    assert "| halfway | missing: no answer |" in batch
    assert "| ours | 90.0 | 90.0 | 1.0 | 1.0 | - |" in batch  # the probe skipped that limit
    widths = {line.count("|") for line in batch.splitlines() if line.startswith("|")}
    assert widths == {9}


def test_who_can_run_where(load: Any, tmp_path: Path) -> None:
    catalog, isa = load("catalog"), load("isa")
    python = tmp_path / "openvino" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "M-openvino-int8").mkdir()

    def whys(cpuinfo: str, **hold: Any) -> dict[str, str]:
        place = catalog.Place(
            models=tmp_path,
            model="M",
            venvs=tmp_path,
            own=sys.executable,
            machine=isa.processor(cpuinfo),
            hold=isa.Hold(environment={}, **hold),
        )
        found, missing = catalog.chosen(["all"], place)
        assert len(found) + len(missing) == len(catalog.PEERS)
        return {engine.name: "" for engine in found} | {e.name: why for e, why in missing}

    free = whys(ZEN_4)
    assert free["openvino-int8"] == ""
    assert free["llamacpp-q8_0"].startswith("not installed: no ")
    assert free["openvino-int4"].startswith("no ")  # installed, but its model is not there
    assert whys(ZEN_3)["ctranslate2-int8-avx512"] == "asks for AVX-512"
    assert whys(ZEN_4, is_needed=True)["openvino-int8"] == ""
    untrapped = whys(ZEN_4, is_needed=True, why_no_trap="no compiler")
    assert untrapped["openvino-int8"] == "cannot be limited to AVX2: it asks cpuid, and no compiler"
    assert untrapped["llamacpp-q8_0"] == "cannot be limited to AVX2: built for this machine"
    assert untrapped["ctranslate2-int8-avx512"] == "asks for AVX-512"
    assert untrapped["xllamacpp-q8_0"].startswith("not installed")


def test_a_machine_with_avx2_alone_needs_no_hold(load: Any, tmp_path: Path) -> None:
    isa = load("isa")
    assert isa.processor(ZEN_3).sets == ["avx2", "fma", "f16c"]
    assert not isa.hold_to_avx2(isa.processor(ZEN_3), tmp_path).is_needed
    hold = isa.hold_to_avx2(isa.processor(ZEN_4), tmp_path)
    assert hold.is_needed and "cpuid_fault" in hold.why_no_trap
    assert "LD_PRELOAD" not in hold.environment
    assert hold.environment["DOVETAIL_CPU_ISA"] == "avx2"


def test_what_asks_cpuid_sees_avx2_and_nothing_above(load: Any, tmp_path: Path) -> None:
    isa = load("isa")
    hold = isa.hold_to_avx2(isa.processor(), tmp_path)
    if not hold.is_needed or hold.why_no_trap:
        pytest.skip(hold.why_no_trap or "nothing above AVX2 here")
    program = tmp_path / "cpuid"
    command = ["cc", "-x", "c", "-o", str(program), "-"]
    subprocess.run(command, input=CPUID, text=True, check=True)
    held = subprocess.run(
        [program], env=os.environ | hold.environment, capture_output=True, text=True, check=True
    )
    assert held.stdout == "1 0 0"
    free = subprocess.run([program], capture_output=True, text=True, check=True)
    assert free.stdout != held.stdout


def test_a_fault_under_the_trap_still_ends_the_process(load: Any, tmp_path: Path) -> None:
    isa = load("isa")
    hold = isa.hold_to_avx2(isa.processor(), tmp_path)
    if not hold.is_needed or hold.why_no_trap:
        pytest.skip(hold.why_no_trap or "nothing above AVX2 here")
    code = "import ctypes; ctypes.string_at(0)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | hold.environment, check=False, timeout=60
    )
    assert done.returncode == -11


def test_one_format_that_fails_does_not_lose_the_others(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    make_models = load("make_models")

    def good(checkpoint: Path, kind: str, target: Path) -> None:
        target.write_text(f"{checkpoint.name} {kind}")

    def bad(checkpoint: Path, kind: str, target: Path) -> None:
        target.mkdir()
        raise AttributeError(f"no {kind}")

    formats = {
        "bad": make_models.Format(write=bad, kinds=("x", "y"), stem="bad-", proof="model"),
        "good": make_models.Format(write=good, kinds=("z",), suffix=".gguf"),
    }
    monkeypatch.setattr(make_models, "FORMATS", formats)
    (tmp_path / "M").mkdir()
    (tmp_path / "M" / "config.json").write_text("{}")
    failed = make_models.write_formats(tmp_path / "M", ["bad", "good"])
    assert failed == ["M-bad-x: AttributeError: no x", "M-bad-y: AttributeError: no y"]
    assert (tmp_path / "M-z.gguf").read_text() == "M z"
    assert not (tmp_path / "M-bad-x").exists()
    capsys.readouterr()
    arguments = ["make_models", str(tmp_path), "--models", "M", "--formats", "bad", "good"]
    monkeypatch.setattr(make_models, "SHAPES", {"M": {}})
    monkeypatch.setattr(sys, "argv", arguments)
    assert make_models.main() == 1
    assert "2 not made:" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*arguments[:4], "--formats", "good"])
    assert make_models.main() == 0


def test_no_driver_hides_the_package_it_imports(load: Any) -> None:
    catalog = load("catalog")
    environment = load("engine_process").environment
    code = (
        "import importlib.util, json, sys; "
        "print(json.dumps({n: getattr(importlib.util.find_spec(n), 'origin', None) "
        "for n in sys.argv[1:]}))"
    )
    drivers = {peer.driver for peer in catalog.PEERS}
    told = environment(catalog.PEERS[0], 1)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *sorted(drivers)],
        env=told,
        cwd=ROOT / "benchmarks" / "peers" / "drivers",
        capture_output=True,
        text=True,
        check=True,
    )
    origins = json.loads(done.stdout)
    assert not [o for o in origins.values() if o and Path(o).is_relative_to(ROOT / "benchmarks")]
    assert origins["transformers"]


@pytest.mark.parametrize("name", ["run", "make_models", "gguf_files", "serve"])
def test_commands_start_as_their_page_says(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.peers.{name}", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"benchmarks.peers.{name}" in done.stdout


@pytest.mark.full_only
@pytest.mark.e2e
def test_a_run_goes_to_its_end_where_no_peer_is_installed(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_models = load("make_models")
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    monkeypatch.setattr(make_models, "VOCAB", 1500)
    monkeypatch.setattr(make_models, "corpus", lambda: iter(pages))
    small = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    monkeypatch.setitem(make_models.SHAPES, "T", make_models.SHAPES["T"] | small)
    make_models.write_checkpoint("T", tmp_path / "T", make_models.train_tokenizer())
    command = [sys.executable, "-m", "benchmarks.peers.run", "--models", str(tmp_path)]
    command += ["--model", "T", "--venvs", str(tmp_path), "--measures", "decode"]
    command += ["--peers", "openvino-int8", "xllamacpp-q8_0", "--engine", "ours-int8:"]
    command += ["--rounds", "1", "--threads", "1", "--tries", "1", "--quiet-wait-s", "0", "--avx2"]
    command += ["--logs", str(tmp_path), "--out", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = "| ours-int8 | decode | no peer ran; best peer missing: llama.cpp (not installed"
    assert told in done.stdout
    assert "| openvino-int8 | missing: " in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["step_tok_s"] > 0 for row in rows if row.get("measure") == "decode"] == [True]
