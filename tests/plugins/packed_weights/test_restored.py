"""A second start maps packed weights: its logits are the same bits, and nothing is packed again."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.runner.load.loader import load_model
from dovetail_kernels.cpu.library import library
from dovetail_kernels.gemm.native import Packed
from dovetail_plugins.packed_weights import loading
from dovetail_plugins.packed_weights.folder import cache_folder, entries
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf

pytestmark = pytest.mark.skipif(library() is None, reason="nothing is packed without the library")
pytest.importorskip("gguf")

DATA = Path(__file__).resolve().parents[2] / "data" / "quantized"
QUANTIZED = sorted(file.parent.name for file in DATA.glob("*/config.json"))
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
MIXED = {"ffn_down": "Q6_K", "attn_v": "Q6_K", "token_embd": "Q4_K"}
TYPES = ("Q4_K", "Q2_K", "Q5_0", "Q8_0", "IQ4_XS", "IQ2_S", "TQ1_0", "MXFP4", "BF16")
OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"},
}
TOKENS = [3, 9, 27, 14, 5]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of packed weights, to which small models are written too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "LEAST_BYTES", 0)
    return cache_folder()


def run_of(path: Path, **fields: Any) -> Any:
    config = Config.from_fields({"model": str(path), "load_format": "auto", **fields})
    return resolve(config).run


def start(run: Any) -> torch.Tensor:
    """Return the logits of a model that is loaded as at the start of an engine."""
    model = load_model(run, torch.device("cpu")).module
    for thread in threading.enumerate():
        if thread.name == "weight-cache":
            thread.join()
    logits = PagedModel(model).forward([(0, TOKENS)])[0]
    assert isinstance(logits, torch.Tensor)
    return logits


def same_twice(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(run)
    assert len(entries(cache_folder())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(Packed, "__init__", _fails)
        second = start(run)
    assert torch.equal(first, second)


def _fails(*_: Any, **__: Any) -> None:
    raise AssertionError("a weight was packed again")


@pytest.mark.parametrize("type_name", [*TYPES, "mixed"])
def test_gguf(type_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tiny_checkpoint(tmp_path / "source", "Qwen3ForCausalLM", **WIDE)
    own = MIXED if type_name == "mixed" else {}

    def type_of(name: str) -> str:
        if "norm" in name:
            return "F32"
        return next((t for part, t in own.items() if part in name), (own and "Q4_K") or type_name)

    write_gguf(source, tmp_path / "model.gguf", type_of)
    same_twice(run_of(tmp_path / "model.gguf"), monkeypatch)


def test_gguf_whose_heads_are_turned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tiny_checkpoint(tmp_path / "source", "LlamaForCausalLM", **WIDE)
    write_gguf(source, tmp_path / "model.gguf", lambda name: "F32" if "norm" in name else "Q4_K")
    same_twice(run_of(tmp_path / "model.gguf"), monkeypatch)


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("family", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_safetensors(
    family: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", family, num_hidden_layers=2)
    same_twice(run_of(path, **OPTIONS[name]), monkeypatch)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_checkpoints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same_twice(run_of(DATA / name, skip_tokenizer_init=True), monkeypatch)


def test_two_ranks_have_an_entry_each(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    run = run_of(path)
    for rank in (0, 1):
        placed = msgspec.structs.replace(run.rank, rank=rank, world_size=2)
        other = msgspec.structs.replace(run, rank=placed)
        assert loading._path_of(other) != loading._path_of(run)


@pytest.mark.parametrize(
    "fields",
    [{"dtype": "float32"}, {"quantization": "int8"}, {"hf_overrides": {"rope_theta": 5.0}}],
)
def test_another_option_is_another_key(fields: dict[str, Any], tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    plain = run_of(path, dtype="bfloat16")
    other = run_of(path, **{"dtype": "bfloat16", **fields})
    assert loading._path_of(other) != loading._path_of(plain)


def test_a_changed_file_is_another_key(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    before = loading._path_of(run_of(path))
    weights = next(path.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert loading._path_of(run_of(path)) != before


def test_only_files_that_are_read_change_the_key_of_a_gguf_file(tmp_path: Path) -> None:
    source = write_tiny_checkpoint(tmp_path / "source", "Qwen3ForCausalLM", **WIDE)
    write_gguf(source, tmp_path / "model.gguf", lambda name: "Q8_0")
    before = loading._path_of(run_of(tmp_path / "model.gguf"))
    (tmp_path / "another.gguf").write_bytes((tmp_path / "model.gguf").read_bytes())
    assert loading._path_of(run_of(tmp_path / "model.gguf")) == before
    os.utime(tmp_path / "model.gguf", ns=(1, 1))
    changed = loading._path_of(run_of(tmp_path / "model.gguf"))
    assert changed != before
    (tmp_path / "mmproj-model.gguf").write_bytes((tmp_path / "model.gguf").read_bytes())
    assert loading._path_of(run_of(tmp_path / "model.gguf")) != changed


def test_no_weight_cache(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    start(run_of(path, weight_cache=False))
    start(run_of(path, weight_cache_bytes=0))
    assert entries(cache_folder()) == []


def test_random_weights_are_not_stored(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    start(run_of(path, load_format="dummy"))
    assert entries(cache_folder()) == []


def test_a_small_model_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LEAST_BYTES", 128 << 20)
    start(run_of(write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")))
    assert entries(cache_folder()) == []


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_larger_than_memory(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", family, num_hidden_layers=2)
    expected = start(run_of(path, weight_cache=False))
    monkeypatch.setattr(loading, "available_bytes", lambda: 1)
    same_twice(run_of(path), monkeypatch)
    assert torch.equal(start(run_of(path)), expected)


def test_larger_than_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    monkeypatch.setattr(loading, "available_bytes", lambda: 1)
    with pytest.raises(ConfigError, match="larger than the free memory"):
        start(run_of(path, weight_cache_bytes=10))


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_larger_than_memory_on_a_disk_that_fills_up(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=2)
    monkeypatch.setattr(loading, "available_bytes", lambda: 1)
    own, calls = getattr(os, call), iter(range(1000))

    def fills_up(*args: Any) -> Any:
        if next(calls) >= (3 if call == "pwrite" else 0):
            raise OSError(number, os.strerror(number))
        return own(*args)

    monkeypatch.setattr(os, call, fills_up)
    with pytest.raises(ConfigError, match=os.strerror(number)) as caught:
        start(run_of(path))
    assert "larger than the free memory" in str(caught.value)
    assert "XDG_CACHE_HOME" in str(caught.value)
    assert list(cache_folder().iterdir()) == []
