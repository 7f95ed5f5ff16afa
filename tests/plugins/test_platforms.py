"""The platforms that come with dovetail: which one is taken, and the types they compute in."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.config.checkpoint.dtypes import chosen_dtypes
from dovetail.config.rules.machine import platform
from dovetail.config.rules.machine.device import select_platform
from dovetail.config.sections.device import DeviceConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError, UnknownPlugin
from dovetail_plugins.platforms.cpu import CpuPlatform
from dovetail_plugins.platforms.cuda import CudaPlatform

PLATFORMS = {"cpu": CpuPlatform, "cuda": CudaPlatform}


@pytest.mark.parametrize(
    ("asked", "stored", "device", "wanted", "kept"),
    [
        ("auto", "bfloat16", "cpu", "float32", "bfloat16"),
        ("auto", "float16", "cpu", "float32", "float16"),
        ("auto", "float32", "cpu", "float32", "float32"),
        ("auto", None, "cpu", "float32", "float32"),
        ("bfloat16", "float32", "cpu", "float32", "bfloat16"),
        ("float32", "bfloat16", "cpu", "float32", "float32"),
        ("auto", "bfloat16", "cuda", "bfloat16", "bfloat16"),
        ("auto", "float16", "cuda", "float16", "float16"),
        ("auto", "float32", "cuda", "bfloat16", "bfloat16"),
        ("auto", None, "cuda", "bfloat16", "bfloat16"),
        ("float16", "bfloat16", "cuda", "float16", "float16"),
    ],
)
def test_dtype(asked: str, stored: str | None, device: str, wanted: str, kept: str) -> None:
    for config in ({"dtype": stored}, {"torch_dtype": f"torch.{stored}"}):
        assert chosen_dtypes(asked, config, PLATFORMS[device](None)) == (wanted, kept)


def picked(word: str) -> str:
    """Return the device that a word comes to."""
    return select_platform(DeviceConfig(device=word), PluginConfig())[1].device_type


def test_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "no_cuda_reason", lambda: None)
    assert [picked(word) for word in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    monkeypatch.setattr(platform, "no_cuda_reason", lambda: "no GPU here")
    assert picked("auto") == "cpu"
    with pytest.raises(ConfigError, match=r"--device cuda: .*no GPU here.*--device cpu"):
        picked("cuda")


def test_a_device_that_no_package_offers_says_how_it_would_come() -> None:
    with pytest.raises(UnknownPlugin, match="install a package that offers a platform"):
        picked("hpu")


def test_engines_on_gpus_see_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    cuda = CudaPlatform(None)
    found = [dict(cuda.engine_variables(place, 2, 1)) for place in range(2)]
    assert found == [{"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "GPU-5"}]
    with pytest.raises(ConfigError, match="3 engines need a GPU each, and there are 2"):
        cuda.engine_variables(0, 3, 1)
    assert cuda.engine_variables(0, 1, 2) == {"CUDA_VISIBLE_DEVICES": "3,GPU-5"}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nodes = [Path(f"/dev/nvidia{name}") for name in ("0", "1", "ctl", "-uvm", "2")]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: nodes)
    assert platform.cuda_devices() == ["0", "1", "2"]
