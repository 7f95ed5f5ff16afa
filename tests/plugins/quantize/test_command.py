"""`dovetail quantize` says what it cannot do, before it has done half of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dovetail.cli.main import main
from dovetail_testing.tiny.models import write_tiny_checkpoint

pytest.importorskip("dovetail_plugins")

SIZES = {"hidden_size": 64, "intermediate_size": 128}
OUTSIDE = '''
"""A quantizer of somebody else: signs and a scale."""
import torch
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantizer import Quantized, Quantizer

class Signs(Quantizer):
    """One bit a weight, in a byte."""
    info = Info(summary="signs")
    def quantize(self, name, weight, inputs):
        scale = weight.abs().mean(1, keepdim=True)
        return Quantized(tensors={"signs": weight.sign().to(torch.int8), "scale": scale},
                         meant=weight.sign() * scale)
    def settings(self, whole):
        return {"quant_method": "signs", "ignore": list(whole)}
'''


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    return write_tiny_checkpoint(root / "model", "Qwen3ForCausalLM", **SIZES)


def quantize(source: Path, out: Path, method: str, *words: str) -> int:
    return main(["quantize", str(source), "--method", method, "--out", str(out), *words])


@pytest.mark.parametrize(
    ("method", "words", "told"),
    [
        ("gptq", [], "--calibration: gptq needs a calibration text"),
        ("int4", ["--group", "48"], "not a multiple of 48"),
        ("int4", ["--group", "0"], "not a multiple of 0"),
        ("int8", ["--group", "32"], "--group: int8 has no groups"),
        ("int9", [], "nearest: int8"),
        ("gptq", ["--calibration", "/nowhere.txt"], "--calibration /nowhere.txt: cannot be read"),
        ("awq", ["--calibration", "SHORT"], "of text are too few"),
        ("gptq", ["--plugin-options.quantizer.bits", "5"], "5 is not a valid choice"),
        ("int8", ["--plugin-options.quantizer.rows", "5"], "rows"),
        ("int8", ["--quantization", "int4"], "quantized already"),
    ],
)
def test_what_cannot_be(
    source: Path,
    method: str,
    words: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "short.txt").write_text("too short")
    words = [str(tmp_path / "short.txt") if word == "SHORT" else word for word in words]
    assert quantize(source, tmp_path / "out", method, *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_quantized_already(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize(source, tmp_path / "out", "int8") == 0
    assert quantize(tmp_path / "out", tmp_path / "again", "int4") == 2
    assert "quantized already (compressed-tensors)" in capsys.readouterr().err
    assert quantize(source, tmp_path / "out", "int8") == 2
    assert "not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("architecture", "words", "told"),
    [
        ("GPTNeoXForCausalLM", ["--method", "gguf-q8_0"], "is not written as GGUF"),
        ("BloomForCausalLM", ["--method", "gptq", "--calibration", "TEXT"],
         "its blocks do not follow each other"),
    ],
)  # fmt: skip
def test_models_that_do_not_fit(
    architecture: str,
    words: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {} if architecture.startswith("GPT2") else SIZES | {"moe_intermediate_size": 64}
    model = write_tiny_checkpoint(tmp_path / "model", architecture, **sizes)
    (tmp_path / "text.txt").write_text("the dog counts one two three " * 40)
    words = [str(tmp_path / "text.txt") if word == "TEXT" else word for word in words]
    assert main(["quantize", str(model), "--out", str(tmp_path / "out"), *words]) == 2
    assert told in capsys.readouterr().err


def test_matrices_that_no_group_fits_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_checkpoint(
        tmp_path / "model", "Qwen3ForCausalLM", hidden_size=64, intermediate_size=48
    )
    assert quantize(model, tmp_path / "out", "int4") == 0
    assert "as before: model.layers.0.mlp.down_proj" in capsys.readouterr().out
    stored = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "model.layers.1.mlp.down_proj" in stored["ignore"]
    assert "model.layers.1.mlp.down_proj.weight" in load_file(
        tmp_path / "out" / "model.safetensors"
    )


def test_report_of_every_matrix(source: Path, tmp_path: Path) -> None:
    words = ["--report", str(tmp_path / "report.json")]
    assert quantize(source, tmp_path / "out", "int8", *words) == 0
    rows: list[dict[str, Any]] = json.loads((tmp_path / "report.json").read_text())
    assert len(rows) == 14
    assert all(0 < row["weights"] < 0.02 and row["outputs"] is None for row in rows)


def test_a_quantizer_from_a_file(source: Path, tmp_path: Path) -> None:
    """Chosen by path, written by core alone."""
    (tmp_path / "outside.py").write_text(OUTSIDE)
    assert quantize(source, tmp_path / "out", f"{tmp_path}/outside.py:Signs") == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["model.layers.0.mlp.up_proj.signs"].shape == (128, 64)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "signs"
