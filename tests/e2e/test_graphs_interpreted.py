"""The way of a GPU, interpreted: Triton attention under graphs that are played, steps ahead."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
from dovetail import LLM, SamplingParams
folder, worker = sys.argv[1:]
wishes = [SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True),
          SamplingParams(temperature=0.9, seed=3, max_tokens=3, ignore_eos=True)]
prompts = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
flags = dict(model=folder, load_format="dummy", skip_tokenizer_init=True, max_num_seqs=3,
             max_model_len=32, dtype="float32", num_gpu_blocks_override=32)
ways = [dict(attention_backend="torch_sdpa", enforce_eager=True),
        dict(attention_backend="triton", worker_cls=worker, async_scheduling=True,
             cuda_graph_sizes=["1", "4"])]
found = []
for way in ways:
    with LLM(**flags, **way) as llm:
        outputs = llm.generate(prompts, [wishes[i % 2] for i in range(3)], use_tqdm=False)
        found.append([list(o.outputs[0].token_ids) for o in outputs])
        calls = llm._engine.core._executor.worker.runner._calls
        replays = getattr(calls, "num_replays", 0)
print(json.dumps({"found": found, "replays": replays}))
"""
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 0,
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_triton_under_graphs_draws_what_torch_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    worker = f"{ROOT / 'tests' / 'plugins' / 'test_workers.py'}:AheadOnCpu"
    paths = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels"))
    env = {"PYTHONPATH": paths, "TRITON_INTERPRET": "1", "DOVETAIL_CPU_ISA": "none"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), worker],
        env=os.environ | env | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["found"][0] == told["found"][1]
    assert told["replays"] >= 2
