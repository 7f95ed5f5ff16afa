"""Scales of a KV cache by flags: what a file may say, and where the flags mean nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.kv_scales import kv_scales, kv_steps
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail_testing.tiny.models import write_tiny_checkpoint

pytest.importorskip("dovetail_plugins")

FACTS: dict[str, Any] = {
    "path": "m",
    "architecture": "LlamaForCausalLM",
    "dtype": "float32",
    "vocab_size": 8,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_size": 16,
    "max_position_tokens": 16,
}
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("m") / "model", "Qwen3ForCausalLM"))


def content() -> dict[str, Any]:
    layers = {"0": 0.5, "1": 2}
    cache = {"dtype": "float8_e4m3fn", "scaling_factor": {"0": layers}}
    return {"model_type": "qwen3", "kv_cache": cache}


def run(model: str, **fields: Any) -> Any:
    return resolve(Config.from_fields({"model": model, **fields})).run


def test_a_file_reaches_the_runner(model: str, tmp_path: Path) -> None:
    file = tmp_path / "scales.json"
    file.write_text(json.dumps(content()))
    spec = run(model, kv_cache_dtype="fp8", quantization_param_path=str(file))
    assert spec.kv_scales == ((0.5, 2.0),) and spec.kv_steps is None
    assert run(model, kv_cache_dtype="fp8").kv_scales == ()
    assert run(model, kv_cache_dtype="fp8_e5m2", calculate_kv_scales=True).kv_steps == (200, 100)


FAULTS: dict[str, tuple[Edit, str]] = {
    "another model": (lambda c: c.update(model_type="llama"), "llama model, this one is qwen3"),
    "another type": (lambda c: c["kv_cache"].update(dtype="float8_e5m2"), "float8_e5m2"),
    "no cache": (lambda c: c.pop("kv_cache"), "kv_cache is not an object"),
    "no ranks": (
        lambda c: c["kv_cache"].update(scaling_factor=[1]),
        "scaling_factor is not an object",
    ),
    "two ranks": (lambda c: c["kv_cache"]["scaling_factor"].update({"1": {}}), "ranks 0, 1"),
    "layer missing": (lambda c: c["kv_cache"]["scaling_factor"]["0"].pop("1"), "has 1 layers"),
    "zero": (lambda c: c["kv_cache"]["scaling_factor"]["0"].update({"1": 0}), "layer 1: 0,"),
    "negative": (lambda c: c["kv_cache"]["scaling_factor"]["0"].update({"0": -1.5}), "-1.5"),
    "nan": (lambda c: c["kv_cache"]["scaling_factor"]["0"].update({"0": float("nan")}), "nan"),
    "text": (lambda c: c["kv_cache"]["scaling_factor"]["0"].update({"0": "1"}), "layer 0: '1'"),
    "flag": (lambda c: c["kv_cache"]["scaling_factor"]["0"].update({"0": True}), "True"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_file_and_the_place(model: str, tmp_path: Path, fault: str) -> None:
    edit, word = FAULTS[fault]
    made = content()
    edit(made)
    file = tmp_path / "scales.json"
    file.write_text(json.dumps(made))
    with pytest.raises(ConfigError, match=r"scales\.json") as caught:
        run(model, kv_cache_dtype="fp8", quantization_param_path=str(file))
    assert word in str(caught.value) and caught.value.where == "--quantization-param-path"


@pytest.mark.parametrize("text", [None, "", "[1]", "{" * 100_000])
def test_what_is_no_such_file(model: str, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "scales.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"scales\.json"):
        run(model, kv_cache_dtype="fp8", quantization_param_path=str(file))


def test_flags_that_contradict_each_other(model: str, tmp_path: Path) -> None:
    file = tmp_path / "scales.json"
    file.write_text(json.dumps(content()))
    path = {"quantization_param_path": str(file)}
    for dtype in ("auto", "bfloat16", "int8"):
        for flag in ({"calculate_kv_scales": True}, path):
            with pytest.raises(ConfigError, match="does not use scales"):
                run(model, kv_cache_dtype=dtype, **flag)
    with pytest.raises(ConfigError, match="the cache holds float8_e5m2"):
        run(model, kv_cache_dtype="fp8_e5m2", **path)
    with pytest.raises(ConfigError, match="would replace"):
        run(model, kv_cache_dtype="fp8", calculate_kv_scales=True, **path)


SCHEMES: list[tuple[dict[str, Any], str]] = [
    ({"num_bits": 8, "type": "int"}, "for int of 8 bits"),
    ({"num_bits": 4, "type": "float"}, "for float of 4 bits"),
    ({"num_bits": 8, "type": "float", "symmetric": False}, "with zero points"),
]


@pytest.mark.parametrize(("scheme", "word"), SCHEMES)
def test_scales_for_other_numbers_are_not_taken(scheme: dict[str, Any], word: str) -> None:
    """Those of the checkpoint; scales that are measured have nothing to do with them."""
    stored = {"quantization_config": {"kv_cache_scheme": scheme}}
    model = FACTS | {"hf_config": stored}
    config = Config.from_fields({"model": "m", "kv_cache_dtype": "fp8"})
    with pytest.raises(ConfigError, match=word):
        kv_scales(config, ModelSpec(**model), "float8_e4m3fn")
    assert kv_scales(config, ModelSpec(**model), "bfloat16") == ()
    measured = Config.from_fields({"model": "m", "calculate_kv_scales": True})
    assert kv_scales(measured, ModelSpec(**model), "float8_e4m3fn") == ()


@pytest.mark.parametrize("text", ["0", "-3", "many", "inf"])
def test_no_number_to_divide_by(text: str) -> None:
    assert kv_steps({"K_SCALE_CONSTANT": "", "V_SCALE_CONSTANT": "2.5"}) == (200.0, 2.5)
    with pytest.raises(ConfigError, match="K_SCALE_CONSTANT"):
        kv_steps({"K_SCALE_CONSTANT": text})
