"""The way of a GPU, interpreted: tensors that say they lie there, graphs that are faked, steps
ahead. Operations over both devices and waits within a step are faults."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.written_lora import write_lora

ROOT = Path(__file__).resolve().parents[2]
WORKER = "support.fake_cuda:FakeCudaWorker"
SCRIPT = """
import contextlib, json, sys
from dovetail import LLM, LoRARequest, SamplingParams
from support.fake_cuda import FakeCuda, using
from support.inside import calls_of, runner_of
wishes = [SamplingParams(temperature=0.9, seed=3, max_tokens=3, ignore_eos=True, logprobs=2,
                         prompt_logprobs=1, repetition_penalty=1.2),
          SamplingParams(temperature=0.9, seed=4, top_p=0.9, max_tokens=3, min_tokens=2,
                         stop_token_ids=[7, 8], logit_bias={4: 3.0})]
prompts = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
worker = sys.argv[1]
for folder, flags, num_tokens, adapters in map(json.loads, sys.argv[2:]):
    params = [SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True), *wishes]
    flags |= dict(model=folder, skip_tokenizer_init=True, max_num_seqs=3, max_model_len=32,
                  num_gpu_blocks_override=32)
    asked = [None] * (3 - len(adapters)) + [LoRARequest(path, 1, path) for path in adapters]
    if adapters:
        flags |= dict(enable_lora=True, max_loras=2, max_lora_rank=8)
    cuda = FakeCuda()
    ways = [(contextlib.nullcontext(), dict(attention_backend="torch_sdpa", enforce_eager=True)),
            (using(cuda), dict(attention_backend="triton", worker_cls=worker, async_scheduling=True,
                                cuda_graph_sizes=["1", "4"]))]
    found = []
    for device, way in ways:
        with device, LLM(**flags, **way) as llm:
            if adapters:  # slots are filled between steps, for which the host waits
                short = SamplingParams(max_tokens=1)
                llm.generate([prompts[1]] * 3, short, lora_request=asked, use_tqdm=False)
            cuda.forbids_waits = True
            outputs = llm.generate(prompts, params, lora_request=asked, use_tqdm=False)
            cuda.forbids_waits = False
            found.append([list(o.outputs[0].token_ids) for o in outputs])
            calls = calls_of(runner_of(llm))
            replays = getattr(calls, "num_replays", 0)
            if not replays:
                outputs = llm.generate(prompts, params, use_tqdm=False)
                without = [list(o.outputs[0].token_ids) for o in outputs]
    print(json.dumps({"found": found, "without": without, "replays": replays}))
"""
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 0,
}


def drawn(*jobs: tuple[Path, dict[str, Any], int, Sequence[Path]]) -> list[dict[str, Any]]:
    """Return the tokens that a CPU draws and a fake GPU, whose steps must not wait, and those that
    the CPU draws without adapters. A job: a model, flags, the tokens of the first row, and adapters
    of the last rows."""
    parts = ("core", "plugins", "kernels", "tests")
    paths = (ROOT / part for part in parts)
    env = {"TRITON_INTERPRET": "1", "DOVETAIL_CPU_ISA": "none", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"}
    words = [
        json.dumps([str(folder), flags, num_tokens, [str(path) for path in adapters]])
        for folder, flags, num_tokens, adapters in jobs
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, WORKER, *words],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()[-len(jobs) :]]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_triton_under_graphs_draws_what_torch_does(tmp_path: Path) -> None:
    """With adapters; and a checkpoint whose words are unpacked where their tables are, and
    multiplied where rows are."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    adapters = [write_lora(tmp_path / name, seed=ord(name), num_layers=1) for name in "ab"]
    flags = {"load_format": "dummy", "dtype": "float32"}
    packed = ROOT / "tests" / "data" / "quantized" / "gptq"
    told, told_of_words = drawn((tmp_path, flags, 5, adapters), (packed, {}, 1, ()))
    assert told["found"][0] == told["found"][1]
    assert told["found"][0][1:] != told["without"][1:], "the adapters change too little"
    assert told["replays"] == 4, "two steps of rows with adapters, and two of the row without"
    assert told_of_words["found"][0] == told_of_words["found"][1]
