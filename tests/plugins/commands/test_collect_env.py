"""`dovetail collect-env`: every section is there, nothing hangs or ends it, no secret is told."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.registry import discovery, hooks
from dovetail.version import __version__
from dovetail_plugins.commands import collect_env


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Collect without asking other interpreters, which takes seconds."""
    monkeypatch.setattr(collect_env, "_json_of", lambda code, limit_s: {"fault": "not asked"})
    return collect_env.collect()


def section(name: str) -> Any:
    """Return the facts of one section."""
    return collect_env.SECTIONS[name]()


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_sections(found: dict[str, Any]) -> None:
    assert list(found) == list(collect_env.SECTIONS)
    faulty = {name for name, facts in found.items() if "fault" in facts}
    assert faulty == {"torch", "native kernels"}
    assert found["dovetail"]["version"] == __version__
    assert found["packages"]["pydantic"] == metadata.version("pydantic")
    assert found["processor"]["usable_processors"] == len(os.sched_getaffinity(0))
    assert found["memory"]["total_gib"] > 0
    assert json.loads(json.dumps(found)) == found
    text = "\n".join(collect_env.as_text(found))
    assert all(f"\n{name}\n" in f"\n{text}\n" for name in found)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_env, "SECTIONS", {"one": lambda: {"a": [1, 2]}, "two": dict})
    assert main(["collect-env"]) == 0
    assert capsys.readouterr().out == "one\n  a  1, 2\n\ntwo\n  none\n"
    assert main(["collect-env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"one": {"a": [1, 2]}, "two": {}}


def test_a_section_that_fails_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, Any]:
        raise OSError("no such thing")

    monkeypatch.setattr(collect_env, "SECTIONS", {"one": fail, "two": lambda: {"a": 1}})
    assert collect_env.collect() == {"one": {"fault": "OSError: no such thing"}, "two": {"a": 1}}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "none"),
        ("echo 'NVIDIA X, 81559 MiB, 0 MiB, 1.2, 9.0'", "1 GPUs"),
        ("exit 9", "failed: it ended with status 9"),
        ("sleep 60", "failed: .*timed out"),
    ],
)
def test_nvidia_smi(
    script: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        program(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    monkeypatch.setattr(collect_env, "LIMIT_S", 0.5)
    facts = section("gpus")
    assert re.match(told, facts["nvidia-smi"])
    assert facts.get("gpu 0", "NVIDIA").startswith("NVIDIA")


def test_a_torch_that_cannot_be_loaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "libcudart.so is missing" in section("torch")["fault"]
    (tmp_path / "torch.py").write_text("import os\nos.abort()")
    assert "status -6" in section("torch")["fault"]
    assert collect_env._json_of("import time\ntime.sleep(60)", 0.5)["fault"]


@pytest.mark.slow
def test_torch_and_the_native_kernels_are_asked() -> None:
    torch, native = section("torch"), section("native kernels")
    assert torch["version"] == metadata.version("torch")
    assert torch["threads"] >= 1
    assert native["state"] != "loaded" or native["isa"]


def test_variables_are_shown_and_secrets_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    given = {
        "DOVETAIL_API_KEY": "hunter2",
        "DOVETAIL_MAX_NUM_BATCHED_TOKENS": "512",
        "DOVETAIL_PLUGIN_OPTIONS": '{"worker": {"api_key": "hunter2"}}',
        "HF_TOKEN": "hunter2",
        "S3_SECRET_ACCESS_KEY": "hunter2",
        "VLLM_SOMETHING_TOKEN": "hunter2",
        "OMP_NUM_THREADS": "2",
        "https_proxy": "http://me:hunter2@proxy:3128",
        "TOKENIZERS_PARALLELISM": "false",
        "MY_DIARY": "hunter2",
    }
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("PYTHONPATH", "/home/somebody/src:/opt")
    shown = section("environment")
    assert "hunter2" not in json.dumps(shown)
    assert set(shown) == {*given, "PYTHONPATH"} - {"MY_DIARY"}
    plain = ("DOVETAIL_MAX_NUM_BATCHED_TOKENS", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")
    assert [shown[name] for name in plain] == ["512", "2", "false"]
    assert shown["PYTHONPATH"] == "~/src:/opt"


def test_plugins_of_others_are_listed_and_may_add_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "my_pack-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-pack\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[dovetail.tool_parser]\nmine = my_pack_hooks:Mine\n"
        "[dovetail.hooks]\nmine = my_pack_hooks\n"
    )
    module = types.ModuleType("my_pack_hooks")
    module.environment_facts = hooks.hookimpl(  # type: ignore[attr-defined]
        lambda: {"card": "Mine 3", "card_key": "hunter2"}
    )
    monkeypatch.setitem(sys.modules, "my_pack_hooks", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    discovery.forget()
    hooks.manager.cache_clear()
    try:
        assert section("plugins of other packages")["my-pack 1.5"] == [
            "tool_parser:mine",
            "hooks:mine",
        ]
        assert section("reported by plugins") == {"card": "Mine 3", "card_key": "***"}
    finally:
        discovery.forget()
        hooks.manager.cache_clear()
