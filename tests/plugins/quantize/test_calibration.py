"""Experts are calibrated with the tokens that their router sends them, by transformers' word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail_plugins.quantize.calibration import Calibration
from dovetail_plugins.quantize.job import LEAST_TOKENS
from dovetail_plugins.quantize.source import CheckpointSource
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint

pytest.importorskip("dovetail_plugins")

SIZES = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 64}


def first_expert_inputs(
    source: Path, windows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what comes to the first block's experts, which are picked, and what the block makes,
    by the library's own forward. Shapes: [T, E], [T, A], [S, L, E]"""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    seen: list[Any] = []
    block = model.model.layers[0]
    hooks = [
        block.mlp.experts.register_forward_pre_hook(lambda _, given: seen.extend(given[:2])),
        block.register_forward_hook(
            lambda _, __, made: seen.append(made[0] if isinstance(made, tuple) else made)
        ),
    ]
    with torch.no_grad():
        model.model(input_ids=windows)
    for hook in hooks:
        hook.remove()
    return seen[0], seen[1], seen[2]


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_inputs_are_the_tokens_that_are_sent(architecture: str, tmp_path: Path) -> None:
    source = write_tiny_checkpoint(tmp_path, architecture, **SIZES)
    run = resolve(Config.from_fields({"model": str(source), "dtype": "float32"})).run
    windows = torch.randint(3, VOCAB_SIZE, (3, 40), generator=torch.Generator().manual_seed(0))
    x, picked, made = first_expert_inputs(source, windows)
    walk = Calibration(run.model, CheckpointSource(run), windows)
    block = walk.measure(0)
    for expert in range(4):
        own = x[(picked == expert).any(-1)]
        for word in ("gate_proj", "up_proj"):
            found = block.inputs[f"mlp.experts.{expert}.{word}"]
            assert found.num_tokens == len(own)
            torch.testing.assert_close(found.gram, own.T @ own / len(own), rtol=1e-4, atol=1e-5)
    walk.advance(0, block.tensors)
    torch.testing.assert_close(walk.hidden, made, rtol=1e-4, atol=1e-4)


def test_experts_that_are_hardly_picked_are_rounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the report says which; the others' errors of outputs are less than by rounding."""
    source = write_tiny_checkpoint(
        tmp_path / "source", "Qwen3MoeForCausalLM", **SIZES, num_experts=16, num_hidden_layers=1
    )
    (tmp_path / "text.txt").write_text("the quick brown fox and the dog count one two three " * 60)
    rows = {}
    for method in ("gptq", "int4"):
        words = ["--calibration", str(tmp_path / "text.txt"), "--report", str(tmp_path / method)]
        words += ["--calibration-tokens", "640", "--group", "32"]
        out = str(tmp_path / f"out-{method}")
        assert main(["quantize", str(source), "--method", method, "--out", out, *words]) == 0
        told = capsys.readouterr().out
        assert (f"fewer than {LEAST_TOKENS} tokens" in told) is (method == "gptq")
        rows[method] = {row["name"]: row for row in json.loads((tmp_path / method).read_text())}
    experts = [name for name in rows["gptq"] if ".experts." in name]
    rare = [name for name in experts if rows["gptq"][name]["tokens"] < LEAST_TOKENS]
    assert 0 < len(rare) < len(experts)
    for name in experts:
        by_text, by_rounding = rows["gptq"][name], rows["int4"][name]
        if name in rare:
            assert by_text["weights"] == pytest.approx(by_rounding["weights"], rel=0.02)
        else:
            assert by_text["outputs"] < by_rounding["outputs"]


def test_names_are_the_checkpoints_own(tmp_path: Path) -> None:
    """As AutoGPTQ and AutoAWQ write them: Mixtral's letters, GPT-2's matrices outputs last."""
    (tmp_path / "text.txt").write_text("the quick brown fox and the dog count one two three " * 60)
    words = ["--calibration", str(tmp_path / "text.txt"), "--method", "gptq"]
    shapes = {}
    for architecture, sizes in (("MixtralForCausalLM", SIZES), ("GPT2LMHeadModel", {})):
        source = write_tiny_checkpoint(tmp_path / architecture, architecture, **sizes)
        out = tmp_path / f"{architecture}-out"
        assert main(["quantize", str(source), "--out", str(out), *words]) == 0
        shapes |= {n: tuple(t.shape) for n, t in load_file(out / "model.safetensors").items()}
    expert = "model.layers.0.block_sparse_moe.experts.3"
    assert shapes[f"{expert}.w1.qweight"] == (32 // 8, 64)
    assert shapes[f"{expert}.w2.qweight"] == (64 // 8, 32)
    assert shapes["model.layers.0.block_sparse_moe.gate.weight"] == (4, 32)
    assert shapes["transformer.h.0.attn.c_attn.qweight"] == (32 // 8, 96)
    assert shapes["transformer.h.0.attn.c_attn.scales"] == (1, 96)
    assert shapes["transformer.h.0.attn.c_attn.bias"] == (96,)
