"""Whole configs become one EngineSpec, and planned faults end in cause and fix.

Names are looked up among the built-in plugins, so these tests need plugins/ on the path.
"""

from __future__ import annotations

import json
import logging
import struct
import sys
import time
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail import registry
from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.machine import platform
from dovetail.engine.kv import prefix_hash
from dovetail.errors import ConfigError, UnknownPlugin
from dovetail.interfaces.data.spec import EngineSpec

pytest.importorskip("dovetail_plugins")

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}


def safetensors(path: Path, *, num_bytes: int = 16) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(num_bytes))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkpoint folder that passes every check (its weights are nonsense)."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    (made / "tokenizer.json").write_text("{}", encoding="utf-8")
    safetensors(made / "model.safetensors")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(platform, "no_cuda_reason", lambda: "this test has no GPU")
    # Another test may have left a handler on an output that is closed by now.
    monkeypatch.setattr(logging.getLogger("dovetail"), "handlers", [])
    return made


def rewrite(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes), encoding="utf-8")


def spec_of(folder: Path, **fields: Any) -> EngineSpec:
    return resolve(Config.from_fields({"model": str(folder), **fields}))


def test_defaults(folder: Path) -> None:
    spec = spec_of(folder)
    run, schedule, cache = spec.run, spec.schedule, spec.cache
    assert (run.device, run.model.dtype, run.kv_dtype) == ("cpu", "float32", "float32")
    assert (run.max_rows, run.max_step_tokens, run.max_model_tokens) == (64, 256, 1024)
    assert (schedule.max_rows, schedule.max_step_tokens, schedule.max_model_tokens) == (
        64,
        256,
        1024,
    )
    assert (run.block_tokens, cache.block_tokens, cache.num_blocks) == (16, 16, None)
    assert cache.uses_prefix_cache
    assert cache.hash_algorithm == prefix_hash.DEFAULT
    assert run.model_plugin.name == "LlamaForCausalLM"
    assert (run.quantization.name, run.load_format.name) == ("none", "auto")
    assert (spec.worker.name, spec.executor.name) == ("cpu", "uni")
    assert (spec.scheduler.name, spec.policy.name) == ("continuous", "fcfs")
    assert {p.name for p in run.logits_processors} >= {"bad_words", "logit_bias", "min_tokens"}
    assert {s.name for s in spec.stat_loggers} == {"log", "prometheus"}
    assert spec.served_names == (str(folder),)
    assert spec.log_level == "INFO"
    assert run.num_threads == platform.usable_cores()


def test_a_spec_crosses_processes(folder: Path) -> None:
    spec = spec_of(folder)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=EngineSpec) == spec


def test_nothing_is_left_open(folder: Path) -> None:
    text = msgspec.json.encode(spec_of(folder)).decode()
    left = text.count('"name":"auto"')  # the load format of that name
    left += text.count('"backend":"auto"')  # a grammar's backend is chosen for each grammar
    assert text.count('"auto"') == left


@pytest.mark.parametrize(
    ("fields", "path", "value"),
    [
        ({"max_model_len": "1k"}, "run.max_model_tokens", 1000),
        ({"max_num_seqs": 3}, "schedule.max_rows", 3),
        ({"max_num_batched_tokens": 24}, "schedule.max_rows", 24),
        ({"max_num_batched_tokens": "4K"}, "run.max_step_tokens", 4096),
        ({"enable_chunked_prefill": False}, "schedule.max_step_tokens", 1024),
        ({"block_size": 32}, "cache.block_tokens", 32),
        ({"num_gpu_blocks_override": 9}, "cache.num_blocks", 9),
        ({"kv_cache_memory_bytes": "9m"}, "cache.memory_bytes", 9_000_000),
        ({"enable_prefix_caching": False}, "cache.uses_prefix_cache", False),
        ({"prefix_caching_hash_algo": "builtin"}, "cache.hash_algorithm", prefix_hash.DEFAULT),
        ({"dtype": "half"}, "run.model.weight_dtype", "float16"),
        ({"kv_cache_dtype": "bfloat16"}, "run.kv_dtype", "bfloat16"),
        ({"scheduling_policy": "priority"}, "policy.name", "priority"),
        ({"scheduler_cls": "vllm.core.scheduler.Scheduler"}, "scheduler.name", "continuous"),
        ({"load_format": "dummy"}, "run.load_format.name", "dummy"),
        ({"model_impl": "transformers"}, "run.model_plugin.name", "transformers"),
        ({"model_impl": "vllm"}, "run.model_plugin.name", "LlamaForCausalLM"),
        ({"attention_backend": "TORCH_SDPA"}, "run.attention.name", "TORCH_SDPA"),
        ({"tokenizer_mode": "deepseek_v32"}, "tokenizer.name", "deepseek_v32"),
        ({"served_model_name": ["a", "b"]}, "served_names", ("a", "b")),
        ({"disable_log_stats": True}, "stat_loggers.0.name", "prometheus"),
        ({"log_level": "debug"}, "log_level", "DEBUG"),
        ({"num_threads": 3}, "run.num_threads", 3),
        ({"async_scheduling": True}, "run.async_steps", True),
        ({"override_generation_config": {"top_k": 7}}, "default_sampling", {"top_k": 7}),
        (
            {"override_generation_config": {"stop": "a", "seed": 3, "presence_penalty": 1}},
            "default_sampling",
            {"stop": ("a",), "seed": 3, "presence_penalty": 1},
        ),
        ({"override_generation_config": {"stop": ["a"]}}, "default_sampling", {"stop": ("a",)}),
        ({"use_tqdm_on_load": False}, "run.shows_progress", False),
    ],
)
def test_fields_reach_the_spec(fields: dict[str, Any], path: str, value: Any, folder: Path) -> None:
    found: Any = spec_of(folder, **fields)
    for name in path.split("."):
        found = found[int(name)] if name.isdigit() else getattr(found, name)
    assert found == value


@pytest.mark.parametrize("name", ["modelopt", "modelopt_fp4"])
def test_names_of_one_export_read_the_same_checkpoint(name: str, folder: Path) -> None:
    rewrite(folder, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    assert spec_of(folder, quantization=name).run.quantization.name == name


def test_omp_num_threads_is_left_to_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert spec_of(folder).run.num_threads == 0


def test_unknown_architectures_go_to_transformers_where_it_knows_them(folder: Path) -> None:
    rewrite(folder, architectures=["PersimmonForCausalLM"])
    assert spec_of(folder).run.model_plugin.name == "transformers"
    with pytest.raises(UnknownPlugin):
        spec_of(folder, model_impl="dovetail")


def test_generation_config_becomes_the_default(folder: Path) -> None:
    stored = {"temperature": 0.5, "eos_token_id": [2, 5]}
    (folder / "generation_config.json").write_text(json.dumps(stored), encoding="utf-8")
    spec = spec_of(folder)
    assert spec.default_sampling == {"temperature": 0.5}
    assert spec.run.model.eos_token_ids == (2, 5)
    assert spec_of(folder, generation_config="vllm").default_sampling == {}


def test_an_installed_broken_logits_processor_is_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with registry.admin.with_entries({"logits_processor": {"bad": "no.such.module:Thing"}}):
        names = [p.name for p in spec_of(folder).run.logits_processors]
        assert "bad" not in names
        assert "bad" in caplog.text
        with pytest.raises(ConfigError, match=r"no\.such"):
            spec_of(folder, logits_processors=["bad"])


def test_resolving_loads_no_torch(folder: Path) -> None:
    import os
    import subprocess

    code = (
        "import sys; from dovetail.config.config import Config;"
        "from dovetail.config.resolve import resolve;"
        f"resolve(Config.from_fields({{'model': {str(folder)!r}}}));"
        "sys.exit(', '.join({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def short_weights(folder: Path) -> None:
    safetensors(folder / "model.safetensors", num_bytes=3)


def missing_shard(folder: Path) -> None:
    index = {"weight_map": {"w": "part-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def unknown_architecture(folder: Path) -> None:
    rewrite(folder, architectures=["LlamaForCausalLN"], model_type="llamas")


def quantized(folder: Path) -> None:
    rewrite(folder, quantization_config={"quant_method": "quip"})


def broken_parser(folder: Path) -> None:
    text = "from dovetail import register\nraise RuntimeError('half written')\n"
    (folder / "parser.py").write_text(text, encoding="utf-8")


def wrong_parser(folder: Path) -> None:
    text = "from dovetail import register\n@register('tool_parser', 'mine')\nclass Mine: pass\n"
    (folder / "parser.py").write_text(text, encoding="utf-8")


def bad_yaml(folder: Path) -> None:
    (folder / "settings.yaml").write_text("port: [1", encoding="utf-8")


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


FAULTS: list[tuple[Any, list[str], str]] = [
    (nothing, ["--tokenizer", "./nowhere"], "no folder ./nowhere"),
    (no_config, [], "no config.json"),
    (no_tokenizer, [], "no tokenizer"),
    (no_weights, [], "no weight files"),
    (short_weights, [], "damaged"),
    (missing_shard, [], "part-2.safetensors"),
    (unknown_architecture, [], "LlamaForCausalLM"),
    (quantized, [], "quip"),
    (quantized, ["--quantization", "none"], "quip"),
    (broken_parser, ["--tool-parser-plugin", "FOLDER/parser.py"], "half written"),
    (
        wrong_parser,
        ["--tool-parser-plugin", "FOLDER/parser.py", "--tool-call-parser", "mine"],
        "mine",
    ),
    (bad_yaml, ["--config", "FOLDER/settings.yaml"], "not YAML"),
    (nothing, ["--hf-overrides", "{a"], "not valid JSON"),
    (nothing, ["--dtype", "bfloat61"], "bfloat16"),
    (nothing, ["--max-model-len", "2000"], "1024"),
    (nothing, ["--max-model-len", "1k", "--kv-cache-memory-bytes", "100k"], "do not fit"),
    (nothing, ["--tool-call-parser", "hermse"], "hermes"),
    (nothing, ["--reasoning-parser", "qwen33"], "qwen3"),
    (nothing, ["--log-level", "inof"], "info"),
    (nothing, ["--uvicorn-log-level", "inof"], "info"),
    (nothing, ["--block-size", "48"], "registered: 1, 8, 16"),
    (nothing, ["--device", "cuda"], "--device cpu"),
    (nothing, ["--plugin-options.tokenizer.code", "{}"], "--trust-remote-code"),
    (nothing, ["--pipeline-parallel-size", "64"], "cannot be divided over 64 stages"),
    (nothing, ["--enable-auto-tool-choice", "--tool-call-parser", "none"], "--tool-call-parser"),
    (nothing, ["--max-num-seqs", "9", "--max-num-batched-tokens", "8"], "at most 8"),
    (
        nothing,
        ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "100"],
        "at least 1024",
    ),
    (nothing, ["--chat-template", "nowhere.jinja"], "neither a file"),
    (nothing, ["--plugin-options.scheduler.wrong", "1"], "wrong"),
    (nothing, ["--generation-config", "nowhere"], "generation_config.json"),
    (nothing, ["--override-generation-config.temperature", "-1"], "temperature"),
    (nothing, ["--scheduling-policy", "no.such:Policy"], "no.such"),
]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the server: only resolve."""
    module: Any = types.ModuleType("dovetail.server.launch.serve")
    package: Any = types.ModuleType("dovetail.server.launch")

    def run(config: Config) -> int:
        resolve(config)
        return 0

    module.run, package.serve = run, module
    monkeypatch.setitem(sys.modules, "dovetail.server.launch", package)
    monkeypatch.setitem(sys.modules, "dovetail.server.launch.serve", module)


def fault_id(value: Any) -> str:
    """Return a test id that is the same in every process."""
    return value.__name__ if callable(value) else str(value)[:40]


@pytest.mark.parametrize(("damage", "words", "message"), FAULTS, ids=fault_id)
def test_planned_faults(
    damage: Any,
    words: list[str],
    message: str,
    folder: Path,
    launched: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    damage(folder)
    words = [word.replace("FOLDER", str(folder)) for word in words]
    start_s = time.perf_counter()
    assert main(["serve", str(folder), *words]) == 2
    assert time.perf_counter() - start_s < 3.0
    lines = capfd.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    assert lines[0].startswith("dovetail: error: ")
    assert len(lines) <= 10
    assert message in "\n".join(lines)


def test_an_executor_is_refused_before_the_model_is_looked_for(tmp_path: Path) -> None:
    """A model may first have to be fetched."""
    pytest.importorskip("dovetail_plugins")
    with pytest.raises(ConfigError, match="uni runs one rank, not 2"):
        spec_of(tmp_path / "nowhere", tensor_parallel_size=2, distributed_executor_backend="uni")


def test_a_wrong_path_and_an_unknown_id(launched: None, folder: Path) -> None:
    assert main(["serve", "/no/such/folder"]) == 2
    assert main(["serve", "no/such-model"]) == 2
    assert main(["serve", str(folder)]) == 0


@pytest.mark.parametrize(
    ("mode", "tokens", "rows"),
    [("balanced", 256, 64), ("interactivity", 128, 64), ("throughput", 512, 128)],
)
def test_performance_mode(folder: Path, mode: str, tokens: int, rows: int) -> None:
    named = {"model": str(folder), "device": "cpu", "performance_mode": mode}
    schedule = resolve(Config.from_fields(named)).schedule
    assert (schedule.max_step_tokens, schedule.max_rows) == (tokens, rows)
    given = {**named, "max_num_batched_tokens": 100, "max_num_seqs": 10}
    schedule = resolve(Config.from_fields(given)).schedule
    assert (schedule.max_step_tokens, schedule.max_rows) == (100, 10)


def test_a_pattern_of_processors_is_checked(folder: Path) -> None:
    named = {"model": str(folder), "device": "cpu"}
    assert resolve(Config.from_fields(named)).processor_pattern is None
    spec = resolve(Config.from_fields({**named, "logits_processor_pattern": "min_.*"}))
    assert spec.processor_pattern == "min_.*"
    with pytest.raises(ConfigError) as caught:
        resolve(Config.from_fields({**named, "logits_processor_pattern": "("}))
    assert caught.value.where == "--logits-processor-pattern"
