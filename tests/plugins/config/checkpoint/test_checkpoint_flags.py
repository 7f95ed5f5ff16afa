"""Flags that change how a checkpoint is found and read, up to the resolved engine.

What they do to a model's numbers is in tests/e2e/test_checkpoint_flags.py.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.parser import Parser
from dovetail.config import resolve
from dovetail.config.checkpoint.rope import rule_of, with_rope
from dovetail.config.checkpoint.sources.model_path import Hub
from dovetail.config.config import Config
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.config.rules.machine import platform
from dovetail.config.rules.steps import cache_size
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec

pytest.importorskip("dovetail_plugins")

CONFIG = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "sliding_window": 256,
    "rope_theta": 5000.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (made / "tokenizer.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(platform, "no_cuda_reason", lambda: "this test has no GPU")
    monkeypatch.setattr(resolve, "available_bytes", lambda: 8 * 2**30)
    return made


def spec_of(folder: Path, **fields: Any) -> EngineSpec:
    # Random weights need no files.
    given = {"model": str(folder), "load_format": "dummy", **fields}
    return resolve.resolve(Config.from_fields(given))


# ---- rotary embedding


def test_rope_flags_keep_the_spelling_of_the_file() -> None:
    older = {"rope_theta": 5000.0, "rope_scaling": None, "hidden_size": 8}
    assert with_rope(older, None, {}) == older
    assert with_rope(older, 9.0, {}) == older | {"rope_theta": 9.0}
    assert with_rope(older, None, YARN) == older | {"rope_scaling": YARN}
    stored = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0, "partial_rotary_factor": 0.5}
    newer = {"rope_parameters": stored, "rope_scaling": {"factor": 2.0}}
    kept = {"rope_theta": 5.0, "partial_rotary_factor": 0.5}
    assert with_rope(newer, None, YARN) == {"rope_parameters": kept | YARN}
    assert with_rope(newer, 9.0, {}) == {"rope_parameters": stored | {"rope_theta": 9.0}}
    per_kind = {"rope_parameters": {"full_attention": stored, "sliding_attention": stored}}
    changed = with_rope(per_kind, 9.0, {})["rope_parameters"]
    assert changed["full_attention"]["rope_theta"] == 9.0
    assert changed["sliding_attention"] == stored


def test_type_is_the_older_word_for_rope_type() -> None:
    assert rule_of({"type": "yarn", "factor": 4.0}) == YARN


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ({"factor": 2.0}, "names no rope_type"),
        ({"rope_type": "yarm", "factor": 2.0}, "nearest: yarn"),
        ({"rope_type": "linear"}, "--rope-scaling.factor: linear needs a number"),
        ({"rope_type": "linear", "factor": "two"}, "not 'two'"),
        ({"rope_type": "llama3", "factor": 8}, "low_freq_factor"),
        ({"rope_type": "yarn", "type": "linear", "factor": 2}, "two rules"),
    ],
)
def test_wrong_scaling_is_told_at_the_start(scaling: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        rule_of(scaling)


def test_a_model_without_rotary_embedding_takes_no_rope_flag() -> None:
    for theta, scaling, where in ((9.0, {}, "--rope-theta"), (None, YARN, "--rope-scaling")):
        with pytest.raises(ConfigError, match=f"{where}: gpt2 models have no rotary"):
            with_rope({"model_type": "gpt2"}, theta, scaling)


def test_scaling_stretches_the_context(folder: Path) -> None:
    assert spec_of(folder).run.max_model_tokens == 1024
    assert spec_of(folder, rope_scaling=YARN).run.max_model_tokens == 4096
    assert spec_of(folder, rope_scaling=YARN, max_model_len=3000).run.max_model_tokens == 3000


# ---- sliding window


def test_disabling_the_window_caps_the_context_and_evens_the_cache(folder: Path) -> None:
    plain, full = spec_of(folder), spec_of(folder, disable_sliding_window=True)
    assert plain.run.model.hf_config["sliding_window"] == 256
    assert full.run.model.hf_config["sliding_window"] is None
    assert (plain.run.max_model_tokens, full.run.max_model_tokens) == (1024, 256)
    assert spec_of(folder, disable_sliding_window=True, max_model_len=90).run.max_model_tokens == 90
    with pytest.raises(ConfigError, match="give at most 256"):
        spec_of(folder, disable_sliding_window=True, max_model_len=257)


# ---- where the model comes from


def test_another_config_with_the_models_weights_and_generation_config(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    changed = json.dumps(CONFIG | {"vocab_size": 77})
    (other / "config.json").write_text(changed, encoding="utf-8")
    (folder / "generation_config.json").write_text('{"top_k": 9}', encoding="utf-8")
    spec = spec_of(folder, hf_config_path=str(other))
    assert spec.run.model.vocab_size == 77
    assert (spec.run.model.path, spec.tokenizer_path) == (str(folder), str(folder))
    assert spec.default_sampling == {"top_k": 9}
    for name, told in (("nowhere/at/all", "no folder nowhere"), (str(folder.parent), "no config")):
        with pytest.raises(ConfigError, match=told):
            spec_of(folder, hf_config_path=name)


def parse(*words: str) -> Config:
    parser = Parser(prog="dovetail serve", description="")
    parser.add_argument("model_tag", nargs="?")
    add_flags(parser)
    args = parser.parse(words)
    return config_of(args, model=args.model_tag)


def test_a_token_may_be_left_out_of_its_flag() -> None:
    assert parse("m").model.hf_token is None
    for words in (("m", "--hf-token"), ("--hf-token", "--port", "1", "m")):
        assert parse(*words).model.hf_token == ""
    assert parse("m", "--hf-token", "abc").model.hf_token == "abc"
    assert Config.from_fields({"hf_token": True}).model.hf_token == ""
    logins = [Hub(token=token).login for token in (None, "", "abc")]
    assert logins == [None, True, "abc"]


@pytest.fixture
def hub() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Serve a hub where every model is gated; yield its address, and the paths and logins seen."""
    seen: list[tuple[str, str]] = []

    class Gate(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            login = self.headers.get("authorization", "nobody")
            seen.append((self.path, login))
            self.send_response(401)
            self.send_header("X-Error-Message", f"{login} may not see this")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("words", "saved", "shown"),
    [
        (["--hf-token", "hf_secret"], None, "Bearer hf_secret"),
        (["--hf-token"], "hf_secret", "Bearer hf_secret"),
        (["--hf-token"], None, None),
        ([], None, "nobody"),
    ],
)
def test_the_hub_is_shown_the_token_and_nobody_else(
    words: list[str],
    saved: str | None,
    shown: str | None,
    hub: tuple[str, list[tuple[str, str]]],
    tmp_path: Path,
) -> None:
    address, seen = hub
    if saved is not None:
        (tmp_path / "token").write_text(saved, encoding="utf-8")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "DOVE"))}
    environ |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "serve", "some/gated", "--verbose", *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 2 and "some/gated" in told
    assert "hf_secret" not in told
    logins = {login for path, login in seen if "some/gated" in path}
    assert logins == ({shown} if shown else set())
    assert shown is not None or "no token found" in told


# ---- what was decided without a flag, and why


def lines_of(folder: Path, caplog: pytest.LogCaptureFixture, **fields: Any) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, "dovetail"):
        spec_of(folder, **fields)
    return caplog.text


def test_the_log_says_what_was_chosen_and_why(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("dovetail"), "propagate", True)
    (folder / "generation_config.json").write_text('{"temperature": 0.6}', encoding="utf-8")
    told = lines_of(folder, caplog)
    assert "dtype auto: weights bfloat16, as the checkpoint stores them" in told
    assert "max_model_len auto: 1024 tokens, the checkpoint's maximum" in told
    assert "MiB, all that the most and longest requests can fill, of 8.0 GiB free" in told
    assert re.search(r"default sampling settings: temperature 0\.6 \(.*model/generation_con", told)
    told = lines_of(folder, caplog, dtype="float32", max_model_len=100, max_num_seqs=2)
    assert "dtype auto" not in told and "max_model_len auto" not in told
    told = lines_of(folder, caplog, generation_config="vllm", gpu_memory_utilization=0.5)
    assert "default sampling settings: dovetail's own (as asked)" in told
    assert "4096 MiB, 50% of 8.0 GiB free, as --gpu-memory-utilization asks" in told
    told = lines_of(folder, caplog, override_generation_config={"top_k": 7})
    assert "top_k 7 (--override-generation-config)" in told
    told = lines_of(folder, caplog, kv_cache_memory_bytes="100k")
    assert "of the checkpoint's 1024 tokens, which is what fits into 97.66 MiB" not in told
    assert re.search(
        r"max_model_len auto: \d+ of the checkpoint's 1024 tokens, which is what fits into 0\.095",
        told,
    )


def test_a_context_nobody_asked_for_fits_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length chosen is the longest that fits: one block more and the start is refused."""
    monkeypatch.setattr(resolve, "available_bytes", lambda: 300_000)
    for flags in ({}, {"max_model_len": "auto"}, {"kv_cache_memory_bytes": 120_000}):
        spec = spec_of(folder, **flags)
        length = spec.run.max_model_tokens
        assert 16 <= length < 1024
        assert spec.cache.memory_bytes is not None
        if spec.cache.memory_bytes != 120_000:
            assert spec.cache.memory_bytes == int(300_000 * cache_size.CPU_MEMORY_SHARE)
        again = {k: v for k, v in flags.items() if k != "max_model_len"}
        assert spec_of(folder, **again, max_model_len=length).run.max_model_tokens == length
        with pytest.raises(ConfigError, match=f"{length} do"):
            spec_of(folder, **again, max_model_len=length + 16)


# ---- the engine as a whole


@pytest.mark.parametrize(
    ("words", "is_eager"),
    [
        ((), False),
        (("-O0",), True),
        (("-O1",), True),
        (("-O", "2"), False),
        (("-O=3",), False),
        (("-O.mode=0", "-O.cudagraph_mode=none"), True),
        (("-O.level", "1"), True),
        (("--compilation-config", '{"level": 3, "use_cudagraph": false}'), True),
        (("--compilation-config.use_cudagraph", "true"), False),
        (("-O3", "--enforce-eager"), True),
    ],
)
def test_compilation_levels(words: tuple[str, ...], is_eager: bool, folder: Path) -> None:
    config = parse(str(folder), "--load-format", "dummy", *words)
    assert resolve.resolve(config).run.is_eager == is_eager


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"level": 4}, "--compilation-config.level"),
        ({"backend": "eager"}, "--compilation-config.backend: this key"),
        ({"use_cudagraph": "maybe"}, "--compilation-config.use_cudagraph"),
    ],
)
def test_other_compilation_settings_are_refused(
    value: dict[str, Any], told: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        spec_of(folder, compilation_config=value)


WORKER = """
from dataclasses import dataclass
from dovetail.interfaces.plugin import Info
from dovetail_plugins.workers.cpu import CpuWorker

@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    colour: str = "none"
    size: int = 0

class Mine(CpuWorker):
    info = Info(summary="test worker", devices=("cpu",))
    Options = Options
"""


def test_additional_config_is_the_workers_options(folder: Path) -> None:
    file = folder / "worker.py"
    file.write_text(WORKER, encoding="utf-8")
    fields: dict[str, Any] = {"worker_cls": f"{file}:Mine", "additional_config": {"size": "3"}}
    assert spec_of(folder, **fields).worker.options == {"size": 3}
    both = {"plugin_options": {"worker": {"colour": "red", "size": 4}}}
    assert spec_of(folder, **fields, **both).worker.options == {"colour": "red", "size": 4}
    with pytest.raises(ConfigError, match=r"--additional-config\.weight: there is no such option"):
        spec_of(folder, **fields | {"additional_config": {"weight": 1}})
    with pytest.raises(ConfigError, match=r"--additional-config\.size"):
        spec_of(folder, **fields | {"additional_config": {"size": "large"}})


def test_the_eager_strategy_reaches_the_load_format(folder: Path) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + b"0"
    (folder / "model.safetensors").write_bytes(whole)
    eager = {"safetensors_load_strategy": "eager"}
    spec = spec_of(folder, **{"load_format": "safetensors", **eager})
    assert spec.run.load_format.options == {"reading": "eager"}
    assert (
        spec_of(folder, load_format="auto", **eager).run.load_format.options["reading"] == "eager"
    )
    for name in ("pt", "dummy"):
        with pytest.raises(ConfigError, match="--safetensors-load-strategy: the load format"):
            spec_of(folder, **{"load_format": name, **eager})
    with pytest.raises(ConfigError, match='asks for "lazy", but the option reading'):
        spec_of(
            folder,
            load_format="safetensors",
            safetensors_load_strategy="lazy",
            model_loader_extra_config={"reading": "eager"},
        )


@pytest.mark.parametrize(
    ("argv", "places"),
    [
        (["--pt-load-map-location", "cuda:1"], {"*": "cuda:1"}),
        (["--pt-load-map-location", '{"cuda:1": "cpu"}'], {"cuda:1": "cpu"}),
        (["--pt-load-map-location.cuda:1", "cpu"], {"cuda:1": "cpu"}),
        (["--pt-load-map-location", "cpu"], None),
    ],
)
def test_where_torch_files_go_reaches_the_load_format(
    folder: Path, argv: list[str], places: dict[str, str] | None
) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"tensors")
    for name in ("pt", "npcache", "auto"):
        config = parse(str(folder), "--load-format", name, *argv)
        wanted = {} if places is None else {"map_location": places}
        assert resolve.resolve(config).run.load_format.options == wanted
    with pytest.raises(ConfigError, match=r"pt-load-map-location.cuda:1: 3 is not a device"):
        spec_of(folder, pt_load_map_location={"cuda:1": 3})


def test_where_torch_files_go_matters_to_formats_that_read_them(folder: Path) -> None:
    with pytest.raises(ConfigError, match="pt-load-map-location: the load format"):
        spec_of(folder, pt_load_map_location="cuda:1")


def test_limits_of_prompts_in_parts(folder: Path) -> None:
    plain = spec_of(folder).schedule
    assert (plain.max_partial, plain.max_long_partial) == (None, None)
    some = {"max_num_partial_prefills": 3, "max_long_partial_prefills": 2}
    limited = spec_of(folder, **some, long_prefill_token_threshold=40).schedule
    found = (limited.max_partial, limited.max_long_partial, limited.long_prompt_tokens)
    assert found == (3, 2, 40)
    ones = {"max_num_partial_prefills": 1, "max_long_partial_prefills": 1}
    assert spec_of(folder, **ones).schedule.long_prompt_tokens == plain.max_step_tokens
    assert spec_of(folder, **ones, enable_chunked_prefill=False).schedule.max_partial == 1
    with pytest.raises(ConfigError, match="give at most 1"):
        spec_of(folder, max_num_partial_prefills=1, max_long_partial_prefills=2)


@pytest.mark.parametrize(
    "fields", [{"runner": "generate"}, {"convert": "none"}, {"task": "auto"}, {"runner": "auto"}]
)
def test_generating_is_what_every_model_is_run_for(fields: dict[str, Any], folder: Path) -> None:
    assert spec_of(folder, **fields).run == spec_of(folder).run


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"runner": "dance"}, "dance"),
        ({"runner": "draft"}, "a draft model runs beside the model"),
    ],
)
def test_what_no_model_is_run_for(fields: dict[str, Any], told: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        spec_of(folder, **fields)


def test_no_tokenizer_is_looked_for_where_none_is_wanted(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="no tokenizer"):
        spec_of(folder)
    assert not spec_of(folder, skip_tokenizer_init=True).has_tokenizer
    with pytest.raises(ConfigError, match="--chat-template: it cannot be combined"):
        spec_of(folder, skip_tokenizer_init=True, chat_template="{{ messages }}")
