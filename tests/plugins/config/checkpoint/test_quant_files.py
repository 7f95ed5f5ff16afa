"""Where checkpoints say how they are quantized: older writers have their own files and names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.config.checkpoint.hf import read_config
from dovetail.config.checkpoint.quant_files import build_method
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import Selection
from dovetail_testing.contract import model_spec

GPTQ = {"bits": 4, "group_size": 128, "desc_act": True, "sym": True, "model_name_or_path": None}
AWQ = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
DEEPSPEED = {"bits": 6, "group_size": 512}
GROUPS = {"config_groups": {}, "format": "pack-quantized"}


def found(folder: Path, config: dict[str, Any], **beside: Any) -> Any:
    for name, content in {"config": config, **beside}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    read = read_config(folder)
    assert read is not None
    return read.get("quantization_config")


@pytest.mark.parametrize(
    ("file", "content", "method"),
    [
        ("quantize_config", GPTQ, "gptq"),
        ("quantize_config", {**GPTQ, "quant_method": "qqq"}, "qqq"),
        ("quant_config", AWQ, "awq"),
        ("hf_quant_config", MODELOPT, "modelopt"),
    ],
)
def test_files_beside_config_json(
    tmp_path: Path, file: str, content: dict[str, Any], method: str
) -> None:
    assert found(tmp_path, {}, **{file: content}) == {**content, "quant_method": method}


def test_files_that_do_not_say_whose_they_are_change_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, {}, quant_config=DEEPSPEED, quantize_config={"bits": 4}) is None


def test_config_json_comes_first(tmp_path: Path) -> None:
    own = {"quant_method": "fp8"}
    assert found(tmp_path, {"quantization_config": own}, quantize_config=GPTQ) == own


@pytest.mark.parametrize(
    ("key", "written", "method"),
    [
        ("compression_config", {}, "compressed-tensors"),
        ("quantization_config", {"quant_method": "compressed_tensors"}, "compressed-tensors"),
        ("quantization_config", {"quant_method": "intel/auto-round"}, "auto-round"),
        ("quantization_config", {"quant_method": "GPTQ"}, "gptq"),
    ],
)
def test_other_spellings(tmp_path: Path, key: str, written: dict[str, str], method: str) -> None:
    assert found(tmp_path, {key: {**GROUPS, **written}}) == {**GROUPS, "quant_method": method}


def test_nesting_without_end_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read as JSON"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("aqlm:Aqlm", {"num_codebooks": "x"}),
        ("awq:Awq", {"group_size": [[]]}),
        ("awq:Awq", {"modules_to_not_convert": 1.5}),
        ("compressed_tensors:CompressedTensors", {"config_groups": ["a"]}),
        ("gptq:Gptq", {"bits": float("inf")}),
    ],
)
def test_settings_of_other_types_are_told(method: str, settings: dict[str, Any]) -> None:
    pytest.importorskip("dovetail_plugins")
    model = model_spec()
    stored = model.hf_config | {"quantization_config": settings}
    chosen = Selection(
        kind="quantization", name="one", target=f"dovetail_plugins.quantization.{method}"
    )
    with pytest.raises(ConfigError, match=r"config\.json: quantization_config is not valid"):
        build_method(chosen, msgspec.structs.replace(model, hf_config=stored))
