"""The engine's core over the real runner: 32 mixed requests together draw what each draws alone.

With few enough blocks to force preemption, with a step in flight ahead, and with prefix hits; on
torch's operators, and on the native kernels with 16- and 8-bit weights, an 8-bit cache and recorded
steps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import msgspec
import pytest

from dovetail import registry
from dovetail.engine.core import EngineCore
from dovetail.engine.kv import prefix_hash
from dovetail.engine.messages import EngineRequest
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import CacheSpec, EngineSpec, ModelSpec, RunSpec, Selection
from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_testing.tiny.transformer import tiny_run

VOCAB = 128
MAX_TOKENS, MAX_ROWS, STEP_TOKENS = 128, 32, 40
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
WISHES = (
    SamplingParams(temperature=0.0, max_tokens=20),
    SamplingParams(temperature=0.8, max_tokens=15),
    SamplingParams(top_k=10, top_p=0.9, logprobs=2, max_tokens=25),
    SamplingParams(
        temperature=0.0, repetition_penalty=1.2, prompt_logprobs=1, max_tokens=10, min_tokens=3
    ),
    SamplingParams(min_p=0.1, logit_bias={3: 2.0}, frequency_penalty=0.3, max_tokens=30),
)
PROCESSORS = ("allowed_token_ids", "bad_words", "logit_bias", "min_p", "min_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What computes; `few_blocks` force preemption."""

    attention: str
    quantization: str = "none"
    dtype: str = "float32"
    kv_dtype: str | None = None
    head_size: int = 16
    block_tokens: int = 16
    few_blocks: int = 10


WAYS = {
    "torch": Way(attention="torch_sdpa", head_size=8, block_tokens=4, few_blocks=45),
    "native": Way(attention="native_cpu", dtype="bfloat16"),
    "native_int8": Way(attention="native_cpu", dtype="bfloat16", quantization="int8"),
    "native_fp8": Way(attention="native_cpu", dtype="bfloat16", kv_dtype="float8_e4m3fn"),
}
KV_SCALES = ((0.02, 0.3),)
"""Of an 8-bit cache, by rank and layer."""


@dataclass(slots=True)
class Answer:
    token_ids: list[int] = field(default_factory=list)
    num_logprobs: int = 0
    num_prompt_logprobs: int = 0
    reason: str | None = None


def requests() -> list[EngineRequest]:
    rng = random.Random(0)
    common = tuple(rng.randrange(VOCAB) for _ in range(12))
    return [
        EngineRequest(
            request_id=str(i),
            prompt_ids=(common if i % 3 == 0 else ())
            + tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))),
            sampling=WISHES[i % len(WISHES)],
            seed=i,
            arrival_s=float(i),
        )
        for i in range(32)
    ]


def run_spec(way: Way, async_steps: bool) -> RunSpec:
    model = ModelSpec(
        path="nowhere",
        architecture="LlamaForCausalLM",
        hf_config=CONFIG | {"head_dim": way.head_size},
        dtype="float32",
        weight_dtype=way.dtype,
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_size=way.head_size,
        max_position_tokens=256,
    )
    return msgspec.structs.replace(
        tiny_run(async_steps=async_steps, max_rows=MAX_ROWS, max_step_tokens=STEP_TOKENS),
        model=model,
        model_plugin=registry.choose("model", "LlamaForCausalLM"),
        load_format=registry.choose("load_format", "dummy"),
        quantization=registry.choose("quantization", way.quantization),
        attention=registry.choose("attention_backend", way.attention),
        kv_dtype=way.kv_dtype or way.dtype,
        kv_scales=KV_SCALES if way.kv_dtype else (),
        block_tokens=way.block_tokens,
        logits_processors=tuple(registry.choose("logits_processor", n) for n in PROCESSORS),
    )


def engine(way: Way, num_blocks: int, async_steps: bool) -> EngineCore:
    return EngineCore(
        EngineSpec(
            run=run_spec(way, async_steps),
            cache=CacheSpec(
                block_tokens=way.block_tokens,
                num_blocks=num_blocks,
                memory_bytes=None,
                memory_share=0.1,
                uses_prefix_cache=True,
                hash_algorithm=prefix_hash.DEFAULT,
            ),
            schedule=ScheduleSpec(
                max_rows=MAX_ROWS,
                max_step_tokens=STEP_TOKENS,
                max_model_tokens=MAX_TOKENS,
                uses_chunked_prefill=True,
                long_prefill_tokens=0,
                async_steps=async_steps,
            ),
            scheduler=registry.choose("scheduler", "continuous"),
            policy=registry.choose("scheduling_policy", "fcfs"),
            executor=registry.choose("executor", "uni"),
            worker=registry.choose("worker", "cpu"),
            tokenizer=Selection(kind="tokenizer", name="none", target="none:none"),
            tokenizer_path="",
            checks_invariants=True,
        )
    )


def answers(
    core: EngineCore, asked: Sequence[EngineRequest], preemptions: list[int] | None = None
) -> dict[str, Answer]:
    found = {request.request_id: Answer() for request in asked}
    for request in asked:
        core.add(request)
    while core.has_work:
        output = core.step()
        if preemptions is not None and output.stats is not None:
            preemptions.append(output.stats.preemptions)
        for update in output.updates:
            assert update.error is None
            answer = found[update.request_id]
            answer.token_ids += update.token_ids
            answer.num_logprobs += len(update.logprobs or ())
            answer.num_prompt_logprobs += len(update.prompt_logprobs or ())
            answer.reason = update.finish_reason or answer.reason
    return found


@cache
def alone(way: Way) -> dict[str, Answer]:
    core, found = engine(way, 500, async_steps=False), {}
    for request in requests():
        found |= answers(core, [request])
    core.shutdown()
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("async_steps", [False, True], ids=["in_turn", "one_ahead"])
@pytest.mark.parametrize("is_roomy", [True, False], ids=["roomy", "preempting"])
def test_together_equals_alone(is_roomy: bool, async_steps: bool, way: Way) -> None:
    if way.attention == "native_cpu" and library() is None:
        pytest.skip(missing_reason() or "")
    core = engine(way, 500 if is_roomy else way.few_blocks, async_steps)
    asked, wanted = requests(), alone(way)
    preemptions: list[int] = []
    assert answers(core, asked, preemptions) == wanted
    assert (sum(preemptions) > 0) is not is_roomy
    for request in asked:
        answer = wanted[request.request_id]
        wants = request.sampling
        assert len(answer.token_ids) == wants.max_tokens and answer.reason == "length"
        assert answer.num_logprobs == (0 if wants.logprobs is None else wants.max_tokens)
        told = 0 if wants.prompt_logprobs is None else len(request.prompt_ids) - 1
        assert answer.num_prompt_logprobs == told
    core.shutdown()
