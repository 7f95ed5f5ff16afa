"""`dovetail inspect`: headers alone, no torch, a screen of 100 columns, keys that stay.

Checkpoints are folders made of a header and zeros: nothing reads the weights. Names are looked up
among the built-in plugins, so these tests need plugins/ on the path.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_plugins.inspect import from_disk
from dovetail_plugins.inspect.render import WIDTH, count, size

pytest.importorskip("dovetail_plugins")

TRAP = 'raise AssertionError("torch was imported to look at a checkpoint")\n'
LIMIT_S = 3.0
"""Processor time, on a machine with other work; about a second on an idle one."""
Shapes = Mapping[str, tuple[int, ...]]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 80,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
}
BLOCK: Shapes = {
    "self_attn.q_proj": (4096, 4096),
    "self_attn.k_proj": (1024, 4096),
    "self_attn.v_proj": (1024, 4096),
    "self_attn.o_proj": (4096, 4096),
    "mlp.gate_proj": (14336, 4096),
    "mlp.up_proj": (14336, 4096),
    "mlp.down_proj": (4096, 14336),
    "input_layernorm": (4096,),
    "post_attention_layernorm": (4096,),
}
TRUNK: Shapes = {
    "model.embed_tokens": (2048, 4096),
    "model.norm": (4096,),
    "lm_head": (2048, 4096),
}
BLOCK_VALUES = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096
TRUNK_VALUES = 2 * 2048 * 4096 + 4096


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DOVETAIL_", "VLLM_")) or name in ("OMP_NUM_THREADS", "HF_TOKEN"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def write_shard(file: Path, shapes: Shapes) -> None:
    """Write a safetensors file of bfloat16 tensors whose bytes are a hole in the file."""
    header, place = {}, 0
    for name, shape in shapes.items():
        end = place + 2
        for length in shape:
            end = place + (end - place) * length
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + place)


def big_checkpoint(folder: Path, num_blocks: int = 80, **changes: Any) -> Path:
    """Write a checkpoint of one file a block, as large as it says and all holes."""
    folder.mkdir()
    index: dict[str, str] = {}
    for number in range(-1, num_blocks):
        names = (
            {f"{name}.weight": shape for name, shape in TRUNK.items()}
            if number < 0
            else {f"model.layers.{number}.{name}.weight": s for name, s in BLOCK.items()}
        )
        file = f"model-{number + 2:05}-of-{num_blocks + 1:05}.safetensors"
        write_shard(folder / file, names)
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO_PATH / name, folder / name)
    return folder


def found(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    assert main(["inspect", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_large_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = big_checkpoint(tmp_path / "model")
    told = found(capsys, path)
    assert told["parameters"] == told["active_parameters"] == 80 * BLOCK_VALUES + TRUNK_VALUES
    memory = told["memory"]
    norms = (2 * 80 + 1) * 4096
    # bfloat16, but norms in float32; a table of 128 floats for every position served
    assert memory["weights_bytes"] == 2 * told["parameters"] + 2 * norms
    served = memory["served_tokens"] or 8192
    assert memory["tables_bytes"] == served * 128 * 4
    assert memory["kv_bytes_per_token"] == 80 * 8 * 128 * 2 * 2
    assert memory["is_exact"]
    assert [len(told["files"]), sum(f["tensors"] for f in told["files"])] == [81, 9 * 80 + 3]
    assert told["quantization"] == "none"
    assert {one["name"]: one["parameters"] for one in told["groups"]} == {
        "embedding": 2048 * 4096,
        "attention": 80 * (2 * 4096 * 4096 + 2 * 1024 * 4096),
        "feed-forward": 80 * 3 * 14336 * 4096,
        "norms": norms,
        "head": 2048 * 4096,
    }


def test_what_fits_into_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = big_checkpoint(tmp_path / "model", 2, num_hidden_layers=2)
    taken = found(capsys, path)["memory"]
    needed = taken["weights_bytes"] + taken["tables_bytes"]
    a_token = taken["kv_bytes_per_token"]
    for room in (0, 64 * a_token, 8192 * a_token, 100_000 * a_token):
        for module in ("dovetail_plugins.platforms.cpu", "dovetail.config.resolve"):
            monkeypatch.setattr(f"{module}.available_bytes", lambda n=needed + room: n)
        memory = found(capsys, path)["memory"]
        # one block of 16 tokens belongs to nobody
        assert memory["longest_tokens"] == max(0, min(8192, room // a_token - 16))
        fits = {one["context_tokens"]: one["requests"] for one in memory["fits"]}
        assert fits == {2048: room // a_token // 2048, 8192: room // a_token // 8192}


def set_memory(monkeypatch: pytest.MonkeyPatch, free_bytes: int, speed: float | None) -> None:
    """Let a machine have so much free memory, and a disk with room that reads so fast."""
    for module in ("dovetail_plugins.platforms.cpu", "dovetail.config.resolve"):
        monkeypatch.setattr(f"{module}.available_bytes", lambda: free_bytes)
    monkeypatch.setattr(from_disk, "has_disk_room", lambda *_: True)
    monkeypatch.setattr(from_disk, "disk_speed", lambda *_: speed)


def test_what_is_larger_than_memory_runs_from_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = big_checkpoint(tmp_path / "model", 4, num_hidden_layers=4)
    assert found(capsys, path)["memory"]["from_disk"] is None
    set_memory(monkeypatch, 1 << 30, 2e9)
    memory = found(capsys, path)["memory"]
    assert memory["longest_tokens"] is None and memory["fits"] == []
    disk = memory["from_disk"]
    missing = memory["weights_bytes"] - (1 << 30)
    assert missing < disk["read_bytes_per_token"] < memory["weights_bytes"]
    assert 0.5 < disk["tokens_per_s"] * disk["read_bytes_per_token"] / 2e9 < 1
    assert main(["inspect", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"runs from disk, about {disk['tokens_per_s']:.1g} tokens/s" in said
    assert "from a disk that reads 2.0 GB/s (measured now)" in said


def test_an_unknown_disk_has_no_speed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = big_checkpoint(tmp_path / "model", 4, num_hidden_layers=4)
    set_memory(monkeypatch, 1 << 30, None)
    assert found(capsys, path)["memory"]["from_disk"]["tokens_per_s"] is None
    assert main(["inspect", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "runs from disk" in said and "tokens/s" not in said


@pytest.mark.parametrize("why", ["--no-weight-cache", "disk"])
def test_what_cannot_run_from_disk_does_not_say_so(
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = big_checkpoint(tmp_path / "model", 4, num_hidden_layers=4)
    set_memory(monkeypatch, 1 << 30, 2e9)
    if why == "disk":
        monkeypatch.setattr(from_disk, "has_disk_room", lambda *_: False)
    told = found(capsys, path, *([why] if why.startswith("--") else []))
    assert told["memory"]["from_disk"] is None
    assert any("has 1.0 GiB free" in warning for warning in told["warnings"])


def test_experts_count_as_active_by_their_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = big_checkpoint(tmp_path / "model", 0, num_local_experts=8, num_experts_per_tok=2)
    names = {f"model.layers.0.block_sparse_moe.experts.{n}.w1.weight": (64, 32) for n in range(8)}
    gate = {"model.layers.0.block_sparse_moe.gate.weight": (8, 32)}
    write_shard(path / "extra.safetensors", {**names, **gate})
    (path / "model.safetensors.index.json").unlink()
    (path / "model-00001-of-00001.safetensors").unlink()
    told = found(capsys, path)
    assert told["parameters"] == 8 * 64 * 32 + 8 * 32
    assert told["active_parameters"] == 2 * 64 * 32 + 8 * 32
    assert {one["name"]: one["layers"] for one in told["groups"]} == {"experts": 8, "router": 1}


def test_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = big_checkpoint(
        tmp_path / "model", 2, auto_map={"AutoModel": "own.Own"}, torch_dtype="float16"
    )
    (path / "own.py").write_text("raise SystemExit")
    (path / "pytorch_model.bin").write_bytes(b"pickled")
    (path / "chat_template.jinja").unlink()
    text = " ".join(found(capsys, path)["warnings"])
    for wanted in (
        "config.json says 80 layers, the tensors are of 2.",
        "names code of its own (AutoModel): it runs only with --trust-remote-code",
        "the folder holds code (own.py)",
        "not read: pytorch_model.bin.",
        "config.json says float16, most weights are stored in bfloat16.",
        "no chat template",
    ):
        assert wanted in text


def test_a_checkpoint_that_serve_refuses_is_still_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = big_checkpoint(
        tmp_path / "model", 2, architectures=["NobodyForCausalLM"], model_type="nobodys"
    )
    told = found(capsys, path)
    assert not told["would_start"]
    assert told["parameters"] == 2 * BLOCK_VALUES + TRUNK_VALUES
    assert any("serve would refuse it" in text and "Nobody" in text for text in told["warnings"])
    (path / "model-00002-of-00003.safetensors").unlink()
    assert any("model-00002-of-00003" in text for text in found(capsys, path)["warnings"])


def test_files_without_headers_are_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = big_checkpoint(tmp_path / "model", 0)
    (path / "model-00001-of-00001.safetensors").unlink()
    (path / "model.safetensors.index.json").unlink()
    (path / "pytorch_model.bin").write_bytes(b"x" * 1000)
    told = found(capsys, path)
    assert told["files"] == [{"name": "pytorch_model.bin", "bytes": 1000, "tensors": None}]
    assert told["memory"] is None
    assert any("only when they are loaded" in text for text in told["warnings"])


def test_nothing_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_keys_stay(capsys: pytest.CaptureFixture[str]) -> None:
    told = found(capsys, DEMO_PATH)
    assert told["version"] == 1
    assert list(told) == [
        *("version", "path", "would_start", "model", "purpose", "parameters"),
        *("active_parameters", "files", "media", "file", "groups", "memory", "quantization"),
        *("plugins", "text", "generation", "warnings"),
    ]
    assert list(told["memory"]) == [
        *("device", "weights_bytes", "tables_bytes", "is_exact", "kv_dtype", "kv_bytes_per_token"),
        "state_bytes_per_request",
        *("free_bytes", "longest_tokens", "fits", "cache_bytes", "served_tokens", "most_requests"),
        "from_disk",
    ]
    plugins = {one["kind"]: one for one in told["plugins"]}
    assert plugins["tool_parser"]["name"] == told["text"]["tool_parser"] == "hermes"
    assert "<tool_call>" in plugins["tool_parser"]["reason"]
    assert plugins["model"]["name"] == "Qwen3ForCausalLM"


def test_flags_count(capsys: pytest.CaptureFixture[str]) -> None:
    plain = found(capsys, DEMO_PATH)
    flags = ("--quantization", "int8", "--kv-cache-dtype", "float16", "--max-model-len", "512")
    told = found(capsys, DEMO_PATH, *flags)
    assert told["memory"]["weights_bytes"] < 0.6 * plain["memory"]["weights_bytes"]
    assert told["memory"]["served_tokens"] == 512
    plugins = {one["kind"]: one for one in told["plugins"]}
    assert plugins["quantization"]["reason"] == "asked for: command line"


def test_the_screen_is_narrow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = big_checkpoint(tmp_path / ("long" * 12), 2)
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= WIDTH for line in lines[1:])  # the path is never broken
    assert not any("no memory is left" in line for line in lines)
    table = next(line for line in lines if line.startswith("feed-forward"))
    assert table.split() == [
        *("feed-forward", "6", "352", "M", "bfloat16", "bfloat16", "672", "MiB", "672", "MiB"),
    ]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (3 * 2**30, "3 GiB")]
)
def test_size(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(("number", "text"), [(7, "7"), (1234, "1.23 K"), (7 * 10**9, "7 B")])
def test_count(number: int, text: str) -> None:
    assert count(number) == text


def test_no_torch_and_little_time(tmp_path: Path) -> None:
    (tmp_path / "traps" / "torch").mkdir(parents=True)
    (tmp_path / "traps" / "torch" / "__init__.py").write_text(TRAP)
    path = big_checkpoint(tmp_path / "model")
    places = [str(tmp_path / "traps"), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(
        [sys.executable, "-m", "dovetail", "inspect", path],
        check=True,
        env=env,
        stdout=subprocess.DEVNULL,
    )
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < LIMIT_S


def test_tensors_that_do_not_fit_their_method_are_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    path = big_checkpoint(tmp_path / "model", 0, quantization_config=stored)
    layer = "model.layers.0.self_attn.q_proj"
    write_shard(
        path / "model-00001-of-00001.safetensors",
        {f"{layer}.qweight": (8, 8), f"{layer}.qzeros": (1, 0), f"{layer}.scales": (1, 8)},
    )
    (path / "model.safetensors.index.json").unlink()
    told = found(capsys, path)
    (group,) = told["groups"]
    assert group["parameters"] > 0
    assert any("no tensor of a head" in text for text in told["warnings"])


def test_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = big_checkpoint(tmp_path / "model", 2)
    target = tmp_path / "memory.png"
    drawn: list[dict[str, float]] = []
    monkeypatch.setattr("dovetail_plugins.plot.check_plot", lambda path: None)
    monkeypatch.setattr(
        "dovetail_plugins.inspect.picture.draw_parts",
        lambda path, title, parts, unit, limit: drawn.append({"limit": limit, **parts}),
    )
    told = found(capsys, path, "--plot", target)
    (parts,) = drawn
    assert parts.pop("limit") > 0
    whole = sum(group["kept_bytes"] for group in told["groups"]) + told["memory"]["tables_bytes"]
    whole += told["memory"]["cache_bytes"] or 0
    unit = 2**30 if whole >= 2**30 else 2**20
    assert sum(parts.values()) * unit == pytest.approx(whole)
    assert any(name.startswith("attention: ") for name in parts)
    monkeypatch.undo()
    assert main(["inspect", str(path), "--plot", str(tmp_path / "memory.jpg")]) == 2
