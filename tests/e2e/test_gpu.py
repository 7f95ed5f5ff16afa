"""What only a GPU shows: captured graphs and steps ahead draw what plain steps and a CPU draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from support.inside import graphs_of, runner_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 0,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
WISHES = [
    GREEDY,
    SamplingParams(temperature=0.9, seed=3, max_tokens=17, ignore_eos=True, logprobs=2),
    SamplingParams(top_k=9, top_p=0.8, seed=4, max_tokens=20, ignore_eos=True),
    SamplingParams(repetition_penalty=1.2, seed=5, max_tokens=9, ignore_eos=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made: Path = tmp_path_factory.mktemp("model")
    (made / "config.json").write_text(json.dumps(SHAPE))
    return str(made)


def prompts(count: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(count)
    return [torch.randint(1, 512, (1 + 3 * i,), generator=draw).tolist() for i in range(count)]


def answers(folder: str, asks: list[list[int]], wishes: list[Any], **flags: Any) -> list[Any]:
    given = {"dtype": "float32", "device": "cuda", "max_num_seqs": 12, "max_model_len": 512}
    given |= {"load_format": "dummy", "skip_tokenizer_init": True, "num_gpu_blocks_override": 2048}
    with LLM(model=folder, **(given | flags)) as llm:
        params = [wishes[i % len(wishes)] for i in range(len(asks))]
        outputs = llm.generate(asks, params, use_tqdm=False)
        runner = runner_of(llm)
        if flags.get("device") != "cpu" and not flags.get("enforce_eager"):
            assert graphs_of(runner).reason is None
            assert graphs_of(runner).num_graphs == len(runner.run.graph_sizes)
        return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_ways_draw_the_same(folder: str, dtype: str) -> None:
    asks = prompts(30)
    plain = answers(folder, asks, WISHES, dtype=dtype, enforce_eager=True)
    for flags in (
        {},
        {"async_scheduling": True},
        {"async_scheduling": True, "enforce_eager": True},
    ):
        assert answers(folder, asks, WISHES, dtype=dtype, **flags) == plain


def test_greedy_float32_is_what_a_cpu_says(folder: str) -> None:
    asks = prompts(50)
    found = answers(folder, asks, [GREEDY], async_scheduling=True)
    assert found == answers(folder, asks, [GREEDY], device="cpu")


def test_the_cache_takes_the_share_that_it_was_given(folder: str) -> None:
    """What is used after the start is the share of the memory, a few hundred MiB aside."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    before = (total - free) / total
    share = before + 0.2
    flags = {"device": "cuda", "load_format": "dummy", "skip_tokenizer_init": True}
    with LLM(model=folder, gpu_memory_utilization=share, **flags) as llm:
        llm.generate(prompts(4), GREEDY, use_tqdm=False)
        free, total = torch.cuda.mem_get_info()
        assert share - 0.05 < (total - free) / total < share + 0.01
