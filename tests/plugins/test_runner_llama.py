"""Runner, loader and worker with real plugins: a Llama-shaped model with made-up weights."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import ModelSpec, RunSpec, Selection
from dovetail.runner.load.loader import load_model, num_bytes
from dovetail_plugins.executors.uni import UniExecutor
from dovetail_testing.scripted_steps import Collector, Driver, DriveRequest
from dovetail_testing.tiny.transformer import tiny_layout, tiny_run

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
REQUESTS = (
    DriveRequest(request_id="a", prompt_ids=tuple(range(1, 30)), num_tokens=12),
    DriveRequest(
        request_id="b", prompt_ids=(9, 8), sampling=SamplingParams(top_p=0.9), seed=1, joins_at=2
    ),
    DriveRequest(request_id="c", prompt_ids=tuple(range(40, 57)), joins_at=3, num_tokens=8),
    DriveRequest(
        request_id="d",
        prompt_ids=(5,) * 9,
        sampling=SamplingParams(logit_bias={7: 2.0}, min_p=0.05, frequency_penalty=0.4),
        seed=2,
        joins_at=3,
    ),
)


def selection(kind: str, name: str) -> Selection:
    return registry.choose(kind, name)


def llama_run(*, dtype: str = "float32", async_steps: bool = False) -> RunSpec:
    model = ModelSpec(
        path="nowhere",
        architecture="LlamaForCausalLM",
        hf_config=CONFIG,
        dtype=dtype,
        vocab_size=128,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_size=8,
        max_position_tokens=256,
    )
    processors = ("allowed_token_ids", "bad_words", "logit_bias", "min_p", "min_tokens")
    return msgspec.structs.replace(
        tiny_run(async_steps=async_steps, vocab_size=128),
        model=model,
        kv_dtype=dtype,
        model_plugin=selection("model", "LlamaForCausalLM"),
        load_format=selection("load_format", "dummy"),
        quantization=selection("quantization", "none"),
        attention=selection("attention_backend", "torch_sdpa"),
        logits_processors=tuple(selection("logits_processor", name) for name in processors),
    )


def run(
    executor: UniExecutor, requests: tuple[DriveRequest, ...] = REQUESTS, **ways: Any
) -> dict[str, list[int]]:
    collector, waiting = Collector(), []
    for plan in Driver(tiny_layout(list(executor.kv_layers()))).plans(requests, **ways):
        waiting.append((plan, executor.submit(plan)))
        if len(waiting) > 1:
            done, pending = waiting.pop(0)
            collector.add(done, pending.result())
    for done, pending in waiting:
        collector.add(done, pending.result())
    assert not any(output.faults for output in collector.outputs.values())
    return {name: output.token_ids for name, output in collector.outputs.items()}


def started(**changes: Any) -> UniExecutor:
    made = UniExecutor(None, llama_run(**changes), selection("worker", "cpu"))
    made.allocate(tiny_layout(list(made.kv_layers())))
    return made


@pytest.fixture(scope="module")
def executor() -> Any:
    made = started()
    yield made
    made.shutdown()


def test_chunked_equals_whole(executor: UniExecutor) -> None:
    whole = run(executor)
    assert [len(ids) for ids in whole.values()] == [12, 6, 8, 6]
    assert run(executor, chunk_tokens=5) == whole


def test_batched_equals_alone(executor: UniExecutor) -> None:
    together = run(executor)
    for one in REQUESTS:
        assert run(executor, (one,))[one.request_id] == together[one.request_id]


def test_one_ahead_equals_in_turn(executor: UniExecutor) -> None:
    ahead = started(async_steps=True)
    try:
        assert run(ahead) == run(executor)
    finally:
        ahead.shutdown()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_run(dtype: str) -> None:
    made = started(dtype=dtype)
    assert all(layer.dtype == dtype for layer in made.kv_layers())
    assert [len(ids) for ids in run(made).values()] == [12, 6, 8, 6]
    made.shutdown()


def test_loading_leaves_torch_as_it_was() -> None:
    before = torch.get_default_dtype()
    loaded = load_model(llama_run(dtype="bfloat16"), torch.device("cpu"))
    assert torch.get_default_dtype() is before
    parameters = list(loaded.module.parameters())
    assert {p.dtype for p in parameters} == {torch.bfloat16}
    assert not any(p.requires_grad for p in parameters) and not loaded.module.training
    assert num_bytes(loaded.module) >= 2 * sum(p.numel() for p in parameters)
    assert loaded.build_s > 0 and loaded.weights_s > 0


def test_a_missing_file_is_named(tmp_path: Any) -> None:
    run_spec = llama_run()
    model = msgspec.structs.replace(run_spec.model, path=str(tmp_path))
    bad = msgspec.structs.replace(
        run_spec, model=model, load_format=selection("load_format", "safetensors")
    )
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_model(bad, torch.device("cpu"))
