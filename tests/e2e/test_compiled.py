"""-O3 draws what -O0 draws: by torch's own compiler, and, for more kinds of models, by what that
compiler is given, run operator by operator (which takes no C++ compiler, and seconds less)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail_kernels.cpu.library import ISA_VARIABLE
from dovetail_testing.tiny.models import write_tiny_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, logging, sys
from torch._inductor import cpu_vec_isa
from dovetail import LLM, SamplingParams
from dovetail.runner.replay import compiled, timing_passes
from support.inside import compiled_of, runner_of

logging.basicConfig(level="INFO")
timing_passes.FEW_TOKENS = ()  # one graph is enough
cpu_vec_isa.valid_vec_isa_list = list  # and no trial of every vector instruction set by g++
compiled.LEAST_GAIN = 0.0  # whatever the clock says
if sys.argv[1] == "traced":
    def run_traced(self, module, inputs):
        self.num_graphs += 1
        return module.forward
    compiled.CompiledForward._compile = run_traced
asked = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
prompts = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
for path in sys.argv[2:]:
    found = {}
    for level in (0, 3):
        with LLM(model=path, max_num_seqs=3, max_model_len=48, dtype="float32", block_size=16,
                 num_gpu_blocks_override=32, use_tqdm_on_load=False,
                 compilation_config={"level": level}) as llm:
            outputs = llm.generate(prompts, asked, use_tqdm=False)
            found[level] = [list(one.outputs[0].token_ids) for one in outputs]
            made = compiled_of(runner_of(llm))
    print(json.dumps({
        "same": found[0] == found[3], "reason": made.reason, "graphs": made.num_graphs,
        "takes": [made.takes(size) for size in (1, 3, 48)],
    }))
"""
TRACED = ["Qwen3MoeForCausalLM", "Gemma2ForCausalLM", "GPT2LMHeadModel"]


def told(way: str, paths: list[Path], **variables: str) -> tuple[list[dict[str, Any]], str]:
    """Return what the script says of each checkpoint, and its log."""
    folders = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels", "tests"))
    env = {
        "PYTHONPATH": folders, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    script = paths[0].with_name("script.py")
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), way, *map(str, paths)],
        env=os.environ | env | variables, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"], done.stderr


@pytest.mark.e2e
def test_compiled_without_native_kernels(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=1)
    (made,), log = told("compiled", [path], **{ISA_VARIABLE: "none"})
    assert made == {"same": True, "reason": None, "graphs": 1, "takes": [True] * 3}, log[-2000:]
    assert "compiled the model's forward pass" in log


@pytest.mark.e2e
def test_traced_around_native_kernels(tmp_path: Path) -> None:
    paths = [write_tiny_checkpoint(tmp_path / name, name) for name in TRACED]
    found, log = told("traced", paths)
    for name, made in zip(TRACED, found, strict=True):
        assert made["reason"] is None, (name, made, log[-2000:])
        assert made["same"] and made["graphs"] == 1, (name, made)
