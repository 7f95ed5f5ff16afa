"""The small rules of resolving: dtype, device, cache size, sampling defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.generation import default_sampling
from dovetail.config.rules.machine import platform
from dovetail.config.rules.steps.cache_size import (
    CPU_CACHE_BYTES,
    Room,
    cpu_cache_bytes,
    fit_tokens,
    kv_bytes,
)
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail_kernels.cpu import control_groups


def model(**hf_config: Any) -> ModelSpec:
    return ModelSpec(
        path="",
        architecture="LlamaForCausalLM",
        hf_config=hf_config,
        dtype="float32",
        vocab_size=10,
        hidden_size=8,
        num_layers=4,
        num_heads=2,
        num_kv_heads=1,
        head_size=4,
        max_position_tokens=100,
    )


def test_hidden_gpus_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" in str(platform.no_cuda_reason())


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = None", None),
        ("cuda: Optional[str] = '12.8'", "12.8"),
        ('cuda = "13.0"', "13.0"),
    ],
)
def test_cuda_build_is_read_from_the_version_file(
    line: str, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
    (tmp_path / "torch" / "version.py").write_text(f"hip = None\n{line}\n", encoding="utf-8")
    found = platform.util.spec_from_file_location("torch", tmp_path / "torch" / "__init__.py")
    monkeypatch.setattr(platform.util, "find_spec", lambda name: found)
    assert platform.torch_cuda_version() == version


def test_machine_facts_are_sane() -> None:
    assert 1 <= platform.usable_cores() <= 4096
    assert platform.available_bytes() > 0


VERSIONS = {
    1: ("memory", "4:memory:{}", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("", "0::{}", "memory.max", "memory.current", ""),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("where", ["", "outer", "outer/inner"])
def test_limits_of_control_groups(
    version: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, line, limit, used, prefix = VERSIONS[version]
    group = tmp_path / root / where
    (tmp_path / root / "outer" / "inner").mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text(f"9:cpu:/else\n{line.format('/outer/inner')}\n")
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN_GROUPS", own)
    assert platform.memory_limit_bytes() is None
    (group / limit).write_text("max" if version == 2 else str((1 << 63) - 4096))
    (group / used).write_text("700")
    (group / "memory.stat").write_text(f"{prefix}active_file 300\n{prefix}inactive_file 50\n")
    assert platform.memory_limit_bytes() is None and platform.available_bytes() > 1000
    (group / limit).write_text("1000")
    assert (platform.memory_limit_bytes(), platform.available_bytes()) == (1000, 650)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_that_is_not_shown_in_a_container(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, line, limit, used, _ = VERSIONS[version]
    own = tmp_path / "own"
    own.write_text(f"{line.format('/docker/0123')}\n")
    (tmp_path / root).mkdir(exist_ok=True)
    (tmp_path / root / limit).write_text("1000\n")
    (tmp_path / root / used).write_text("400\n")
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN_GROUPS", own)
    assert platform.available_bytes() == 600


def test_kv_bytes() -> None:
    per_token = 2 * 1 * 4 * 4
    assert kv_bytes(model(), "float32", 10, 5) == 4 * 10 * per_token
    assert kv_bytes(model(), "bfloat16", 10, 5) == 4 * 10 * per_token // 2
    kinds = ["sliding_attention", "full_attention"] * 2
    windowed = model(sliding_window=3, layer_types=kinds)
    assert kv_bytes(windowed, "float32", 10, 5) == (2 * 10 + 2 * 8) * per_token
    unused = model(sliding_window=3, layer_types=kinds, use_sliding_window=False)
    assert kv_bytes(unused, "float32", 10, 5) == 4 * 10 * per_token


def test_cpu_cache_is_modest_and_never_useless() -> None:
    assert cpu_cache_bytes(1 << 40, None, 1 << 40) == CPU_CACHE_BYTES
    assert cpu_cache_bytes(1 << 40, None, 1000) == 1000
    assert cpu_cache_bytes(1000, None, 1 << 40) == 400
    assert cpu_cache_bytes(1000, 0.9, 10) == 900


def room(num_blocks: int) -> Room:
    block_bytes = kv_bytes(model(), "float32", 16, 1)
    return Room(
        model=model(),
        kv_dtype="float32",
        memory=num_blocks * block_bytes,
        block_tokens=16,
        step_tokens=1,
    )


def test_context_is_shortened_only_when_nobody_asked() -> None:
    assert fit_tokens(None, 100, room(8)) == 100
    assert fit_tokens(None, 100, room(4)) == 48
    with pytest.raises(ConfigError, match="--max-model-len 48"):
        fit_tokens(100, 100, room(4))
    with pytest.raises(ConfigError):
        fit_tokens(None, 100, room(1))


def generation(folder: Path, **values: Any) -> str:
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    return str(folder)


def test_sampling_defaults(tmp_path: Path) -> None:
    path = generation(tmp_path, temperature=0.6, top_k=20, max_new_tokens=64, do_sample=True)
    stored = {"temperature": 0.6, "top_k": 20, "max_tokens": 64}
    assert default_sampling("model", path, {}) == stored
    assert default_sampling("model", path, {"top_k": 5}) == stored | {"top_k": 5}
    assert default_sampling(None, path, {}) == {}
    assert default_sampling(path, "elsewhere", {}) == stored
    assert default_sampling("model", str(tmp_path / "none"), {}) == {}


@pytest.mark.parametrize("values", [{"temperature": -1}, {"top_p": "high"}])
def test_wrong_sampling_defaults(values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        default_sampling("model", str(tmp_path), values)


def test_a_named_folder_must_hold_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="generation_config"):
        default_sampling(str(tmp_path), "elsewhere", {})
