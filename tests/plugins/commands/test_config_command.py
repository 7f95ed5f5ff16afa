"""`dovetail config show` and `config check`: values, origins, secrets, faults, and no torch.

Names are looked up among the built-in plugins, so these tests need plugins/ on the path.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.config import flags
from support.demo_copies import demo_copy, with_file

pytest.importorskip("dovetail_plugins")

TRAP = 'raise AssertionError("torch was imported to look at settings")\n'


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DOVETAIL_", "VLLM_")) or name in ("OMP_NUM_THREADS", "HF_TOKEN"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def settings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["config", "show", "--json", "--origin", *words]) == 0
    return json.loads(capsys.readouterr().out)["settings"]


def test_every_flag_is_shown_with_where_it_comes_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("max-num-seqs: 7\nblock-size: 32\nseed: 5\n", encoding="utf-8")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.25")
    monkeypatch.setenv("DOVETAIL_SEED", "6")
    shown = settings(
        capsys, str(DEMO_PATH), "--config", str(file), "--max-model-len", "1k", "--seed", "7"
    )
    assert set(shown) == set(flags())
    expected = {
        "max_model_len": (1000, "command line"),
        "seed": (7, "command line"),
        "kv_cache_memory_bytes": (2**28, "VLLM_CPU_KVCACHE_SPACE"),
        "max_num_seqs": (7, str(file)),
        "block_size": (32, str(file)),
        "dtype": ("bfloat16", "model"),
        "kv_cache_dtype": ("bfloat16", "model"),
        "served_model_name": ([str(DEMO_PATH)], "model"),
        "tokenizer": (str(DEMO_PATH), "model"),
        "tool_call_parser": ("hermes", "model"),
        "reasoning_parser": ("qwen3", "model"),
        "generation_config": (str(DEMO_PATH / "generation_config.json"), "model"),
        "chat_template": ("the model's", "model"),
        "device": ("cpu", "machine"),
        "worker_cls": ("cpu", "machine"),
        "max_num_batched_tokens": (256, "default"),
        "max_num_queued_reqs": (28, "default"),
        "quantization": ("none", "default"),
        "port": (8000, "default"),
    }
    got = {name: (shown[name]["value"], shown[name]["origin"]) for name in expected}
    assert got == expected


def test_how_a_request_that_says_nothing_is_sampled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values = json.dumps({"temperature": 0.7, "top_k": 20, "max_new_tokens": 9})
    model = with_file(demo_copy(tmp_path), "generation_config.json", values)
    file = tmp_path / "settings.yaml"
    file.write_text("override-generation-config: {top_k: 5}\n", encoding="utf-8")

    def told(*words: str) -> dict[str, Any]:
        assert main(["config", "show", "--request", "--json", model, *words]) == 0
        rows = json.loads(capsys.readouterr().out)["request"]
        return {name: (row["value"], row["origin"]) for name, row in rows.items()}

    found = told("--config", str(file))
    assert found["temperature"] == (0.7, "model")
    assert found["top_k"] == (5, str(file))
    assert found["max_tokens"] == (9, "model")
    assert found["top_p"] == (1.0, "default")
    words = ("--generation-config", "dovetail", "--override-generation-config.max_new_tokens", "3")
    found = told(*words)
    assert found["temperature"] == (1.0, "default")
    assert found["max_tokens"] == (3, "command line")
    assert told("--generation-config", model)["top_k"] == (
        20,
        str(Path(model) / "generation_config.json"),
    )
    assert main(["config", "show", "--request"]) == 0
    assert "max_tokens          all that fits" in capsys.readouterr().out


def test_auto_is_decided_by_others_whoever_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = settings(capsys, "--dtype", "auto", "--max-model-len", "auto", "--num-threads", "0")
    assert [shown[name]["origin"] for name in ("dtype", "max_model_len", "num_threads")] == [
        "model",
        "model",
        "machine",
    ]
    assert shown["num_threads"]["value"] >= 1
    assert shown["model"] == {"value": "dovetail-demo", "origin": "demo model"}


def test_a_cache_too_small_for_the_model_is_the_machines_doing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = settings(capsys, "--kv-cache-memory-bytes", "1000000")
    assert shown["max_model_len"]["origin"] == "machine"
    assert 0 < shown["max_model_len"]["value"] < 2048


def test_secrets_are_masked_on_every_route(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("hf-token: hunter2\n", encoding="utf-8")
    monkeypatch.setenv("DOVETAIL_PLUGIN_OPTIONS", '{"bench_dataset": {"api_key": "hunter2"}}')
    monkeypatch.setenv("VLLM_API_KEY", "hunter2")
    for form in (["--json"], ["--all", "--origin"], []):
        assert main(["config", "show", "--config", str(file), *form]) == 0
        printed = capsys.readouterr()
        assert "hunter2" not in printed.out + printed.err
        assert printed.out.count("***") == 3


def test_the_table_shows_what_was_chosen_and_counts_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "show", "--seed", "3", "--origin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["seed", "3", "command", "line"] for line in lines)
    assert not any(line.split()[:1] == ["port"] for line in lines)
    assert lines[-1].endswith("more are at their defaults: --all shows them.")
    assert main(["config", "show", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["port", "8000"] for line in lines)
    named = {line.split()[0] for line in lines if line.startswith("  ") and line.strip()}
    assert set(flags()) <= named


def test_check_says_what_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--port", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].removeprefix("OK").strip() for line in lines] == [
        "settings", "HTTP flags", "model", "plugins", "memory", "socket", "tokenizer",
        "chat template", "parsers", "model class", "APIs", "address",
    ]  # fmt: skip
    assert all(line.startswith("OK  ") for line in lines)


@pytest.mark.parametrize(
    ("words", "cause", "num_ok"),
    [
        (["--port", "many"], "--port", 0),
        (["--video-pruning-rate", "0.5"], "no videos are taken", 2),
        (["--ssl-keyfile", "/no/such.pem"], "--ssl", 1),
        (["--chat-template", "{% for x %}"], "--chat-template", 1),
        (["--middleware", "/no/such.py:Thing"], "--middleware: /no/such.py:Thing", 1),
        (["--api-server-count", "2", "--disable-frontend-multiprocessing"], "one process", 1),
        (["--allowed-origins", "https://a.example", "a.example"], '"a.example"', 1),
        (["--plugin-options.stat_logger.interval_s", "5"], "stat_logger.interval_s", 0),
        (["--plugin-options.stat_logger.log.nope", "5"], "stat_logger.log.nope", 2),
        (["--plugin-options.logits_processor.nope.x", "5"], '"nope" is none', 0),
        (["--plugin-options.dtype.x", "1"], "constants have no options", 0),
        (["--allowed-origins", "https://a.example/"], '"https://a.example/"', 1),
        (["--max-model-len", "1m"], "--max-model-len", 2),
        (["/no/such/folder"], "/no/such/folder", 2),
        (["--cpu-cores", "0,4000"], "may not use 4000", 2),
        (["--socket-dir", "/no/such/folder"], "--socket-dir", 5),
    ],
)
def test_check_ends_with_the_first_fault(
    words: list[str], cause: str, num_ok: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", "--port", "0", *words]) == 2
    printed = capsys.readouterr()
    *_, error, fix = printed.err.splitlines()
    assert error.startswith("dovetail: error: ") and cause in error
    assert fix.startswith("fix: ")
    assert printed.out.count("OK  ") == num_ok


def test_check_finds_what_serve_finds_only_with_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = with_file(demo_copy(tmp_path), "tokenizer.json", '{"version": 1}')
    assert main(["config", "check", "--port", "0", broken]) == 2
    assert "tokenizer.json" in capsys.readouterr().err


def test_check_finds_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["config", "check", "--port", str(port)]) == 2
    assert f"port {port} is in use" in capsys.readouterr().err


_CHECK = """
import sys
from dovetail.cli.main import main
assert main(["config", "check", "--port", "0"]) == 0
assert not {"torch", "transformers"} & set(sys.modules)
"""


def test_check_loads_torch_only_in_the_process_that_creates_the_model() -> None:
    subprocess.run([sys.executable, "-c", _CHECK], check=True)


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"architectures": ["Grok1ForCausalLM"]}, "Grok1ForCausalLM"),
        ({"architectures": ["MyForCausalLM"], "model_type": "mine"}, "MyForCausalLM"),
        ({"quantization_config": {"quant_method": "nobodys"}}, "nobodys"),
        ({"quantization_config": {"quant_method": "awq", "bits": 5}}, "bits"),
        ({"hidden_act": "no_such_function"}, "no_such_function"),
        ({"num_hidden_layers": 9, "layer_types": ["full_attention"] * 9}, "missing"),
    ],
)
def test_check_refuses_the_class_and_the_quantization_that_serve_refuses(
    tmp_path: Path, config: dict[str, Any], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = demo_copy(tmp_path, **config)
    assert main(["config", "check", "--port", "0", broken]) == 2
    assert cause in capsys.readouterr().err


def test_no_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TRAP)
    (tmp_path / "transformers.py").write_text(TRAP.replace("torch", "transformers"))
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "config", "show", "--port", "0"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_check_finds_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    folder = str(blocker / "x")
    assert main(["config", "check", "--port", "0", "--file-storage", folder]) != 0
    assert "--file-storage" in capsys.readouterr().err


def test_check_looks_at_every_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.yaml"
    rows = [
        {"model": str(DEMO_PATH), "served_model_name": ["first"]},
        {"model": "/no/such/folder", "served_model_name": ["second"]},
    ]
    file.write_text(json.dumps({"models": rows}))
    assert main(["config", "check", "--port", "0", "--models", str(file)]) == 2
    told = capsys.readouterr()
    assert "first:" in told.out and "second:" in told.out and "/no/such/folder" in told.err
    file.write_text(json.dumps({"models": rows[:1]}))
    assert main(["config", "check", "--port", "0", "--models", str(file)]) == 0
    assert main(["config", "check", "--port", "0", str(DEMO_PATH), str(DEMO_PATH)]) == 2
    assert "dovetail serve` takes several" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--load-wait-s", "3"], "--load-wait-s"),
        (["--kv-transfer-config.kv_connector_extra_config.secret_file", "/no/such"], "secret_file"),
        (["--kv-transfer-config.kv_connector_extra_config.peers", "[nowhere]"], "peers"),
    ],
)
def test_check_finds_what_serve_refuses(
    words: list[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    p2p = ["--kv-transfer-config.kv_connector", "p2p", "--kv-transfer-config.kv_role", "kv_both"]
    assert main(["config", "check", "--port", "0", *(p2p if "kv" in words[0] else ()), *words]) == 2
    assert cause in capsys.readouterr().err
