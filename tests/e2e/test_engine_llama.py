"""The whole engine on a tiny random Llama: batches, preemption and prefix hits change no token."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from dovetail import registry
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.host import EngineProcess
from dovetail.engine.client.results.outputs import join_deltas
from dovetail.errors import EngineDead
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.llm.llm import LLM
from dovetail_testing.fakes.engine import EOS, VOCAB_SIZE, fake_spec
from support.inside import core_of, engine_of, replace_counter

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "eos_token_id": EOS,
    "bos_token_id": EOS + 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
PROCESSORS = ("allowed_token_ids", "bad_words", "logit_bias", "min_tokens", "min_p")
MANY_BLOCKS, FEW_BLOCKS = 600, 34
SEEDED = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 20},
    {"top_p": 0.8, "min_p": 0.02},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
    {"temperature": 0.0, "logit_bias": {65: 5.0}},
    {"min_tokens": 10, "bad_words": ("a", "the")},
    {"logprobs": 3, "temperature": 1.5},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny-llama")
    (made / "config.json").write_text(json.dumps(CONFIG))
    save_file(random_weights(), made / "model.safetensors")
    return made


def random_weights() -> dict[str, torch.Tensor]:
    """Return weights so large that every token depends on all before it."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.5

    tensors = {
        "model.embed_tokens.weight": normal(VOCAB_SIZE, 32),
        "lm_head.weight": normal(VOCAB_SIZE, 32),
        "model.norm.weight": torch.ones(32),
    }
    shapes = {
        "self_attn.q_proj": (32, 32),
        "self_attn.k_proj": (16, 32),
        "self_attn.v_proj": (16, 32),
        "self_attn.o_proj": (32, 32),
        "mlp.gate_proj": (64, 32),
        "mlp.up_proj": (64, 32),
        "mlp.down_proj": (32, 64),
    }
    for layer in range(2):
        head = f"model.layers.{layer}"
        tensors |= {f"{head}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{head}.{norm}.weight"] = torch.ones(32)
    return tensors


def llama_spec(
    folder: Path, *, num_blocks: int = MANY_BLOCKS, async_steps: bool = False
) -> EngineSpec:
    """Return an engine of the real plugins around a byte tokenizer."""
    fake = fake_spec(
        num_blocks=num_blocks,
        block_tokens=4,
        max_rows=32,
        max_step_tokens=48,
        max_model_tokens=128,
        async_steps=async_steps,
    )
    run = msgspec.structs.replace(
        fake.run,
        model=load_model_facts(folder, dtype="float32"),
        model_plugin=registry.choose("model", "LlamaForCausalLM"),
        load_format=registry.choose("load_format", "safetensors"),
        quantization=registry.choose("quantization", "none"),
        attention=registry.choose("attention_backend", "torch_sdpa"),
        logits_processors=tuple(registry.choose("logits_processor", p) for p in PROCESSORS),
        shows_progress=False,
        num_threads=1,
    )
    return msgspec.structs.replace(
        fake,
        run=run,
        scheduler=registry.choose("scheduler", "continuous"),
        policy=registry.choose("scheduling_policy", "fcfs"),
        executor=registry.choose("executor", "uni"),
        worker=registry.choose("worker", "cpu"),
    )


def mixed_requests() -> tuple[list[str], list[SamplingParams]]:
    """Return 32 prompts of many lengths, some sharing a prefix, with all kinds of params."""
    rng = random.Random(3)
    prompts = []
    for i in range(32):
        words = "".join(rng.choice("abcdefgh ") for _ in range(rng.randint(1, 60)))
        prompts.append("a long shared beginning " + words[:20] if i % 4 == 0 else words)
    params = [
        SamplingParams(**{"seed": i, "max_tokens": 8 + i % 25} | SEEDED[i % len(SEEDED)])
        for i in range(32)
    ]
    return prompts, params


def outcome(result: Any) -> Any:
    assert result.error is None, result.error
    (one,) = result.outputs
    ids = [entry.top_ids for entry in one.logprobs or ()]
    return one.text, one.token_ids, one.finish_reason, ids


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Any]:
    """Return what each of the mixed requests gives in an engine of its own turn."""
    spec = msgspec.structs.replace(llama_spec(folder), checks_invariants=False)
    cache = msgspec.structs.replace(spec.cache, uses_prefix_cache=False)
    with LLM.from_spec(msgspec.structs.replace(spec, cache=cache)) as llm:
        prompts, params = mixed_requests()
        return [
            outcome(llm.generate(prompt, one, use_tqdm=False)[0])
            for prompt, one in zip(prompts, params, strict=True)
        ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("async_steps", [False, True])
@pytest.mark.parametrize("num_blocks", [MANY_BLOCKS, FEW_BLOCKS])
def test_32_mixed_requests_equal_each_alone(
    folder: Path, alone: list[Any], num_blocks: int, async_steps: bool
) -> None:
    prompts, params = mixed_requests()
    with LLM.from_spec(llama_spec(folder, num_blocks=num_blocks, async_steps=async_steps)) as llm:
        core = core_of(llm)
        preemptions = count_preemptions(core)
        for _ in range(2):  # the second round hits the prefix cache wherever it can
            results = llm.generate(prompts, params, use_tqdm=False)
            assert [outcome(result) for result in results] == alone
        assert (preemptions() > 0) == (num_blocks == FEW_BLOCKS)
        if num_blocks == MANY_BLOCKS:
            assert sum(result.num_cached_tokens for result in results) > 0
        core.check_idle()


def count_preemptions(core: Any) -> Any:
    """Return a function that says how many rows were preempted since now."""
    seen = [0]

    def spied(counter: Any) -> Spy:
        def watched(*args: Any, **kwargs: Any) -> Any:
            seen[0] += counter.preemptions
            return counter.take(*args, **kwargs)

        return Spy(counter, watched)

    replace_counter(core, spied)
    return lambda: seen[0]


class Spy:
    """A StepCounter whose `take` is watched."""

    def __init__(self, counter: Any, take: Any) -> None:
        object.__setattr__(self, "_counter", counter)
        object.__setattr__(self, "take", take)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._counter, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._counter, name, value)


async def text_of(engine: AsyncEngine, prompt: str, params: SamplingParams) -> tuple[Any, ...]:
    deltas = []
    async for output in engine.generate(prompt, params, "r"):
        deltas += output.deltas
    whole = join_deltas(deltas)
    return whole.text, whole.token_ids, whole.finish_reason


@pytest.mark.sampled(1)
@pytest.mark.parametrize("async_steps", [False, True])
@pytest.mark.parametrize("in_process", [True, False])
def test_streamed_through_the_async_engine(
    folder: Path, alone: list[Any], in_process: bool, async_steps: bool
) -> None:
    async def main() -> list[tuple[Any, ...]]:
        spec = llama_spec(folder, num_blocks=FEW_BLOCKS, async_steps=async_steps)
        engine = await AsyncEngine.start(spec, in_process=in_process)
        try:
            jobs = zip(*mixed_requests(), strict=True)
            return await asyncio.gather(*(text_of(engine, *job) for job in jobs))
        finally:
            await engine.shutdown()

    assert asyncio.run(main()) == [one[:3] for one in alone]


@pytest.mark.parametrize("async_steps", [False, True])
def test_aborts_at_random_moments_leave_all_blocks_free(folder: Path, async_steps: bool) -> None:
    rng = random.Random(11)
    prompts, params = mixed_requests()
    with LLM.from_spec(llama_spec(folder, num_blocks=FEW_BLOCKS, async_steps=async_steps)) as llm:
        engine = engine_of(llm)
        keys = []
        for _ in range(5):
            keys += [
                engine.submit(engine.prepare(prompt, one))
                for prompt, one in zip(prompts[::3], params[::3], strict=True)
            ]
            for _ in range(rng.randint(1, 12)):
                engine.step()
                if keys and rng.random() < 0.7:
                    engine.abort(keys.pop(rng.randrange(len(keys))))
        for key in keys:
            engine.abort(key)
        engine.settle()
        engine.core.check_idle()
        assert engine.core.cache.num_free_blocks == engine.core.cache.num_blocks
        assert outcome(llm.generate(prompts[1], params[1], use_tqdm=False)[0])


def test_the_model_looks_at_the_whole_prompt(folder: Path) -> None:
    """Otherwise the tests above could not see a wrong block table."""
    with LLM.from_spec(llama_spec(folder)) as llm:
        params = SamplingParams(max_tokens=8, temperature=0.0)
        prompts = [char + "bcdefgh" * 8 for char in "aijklmno"]
        results = llm.generate(prompts, params, use_tqdm=False)
        assert len({result.outputs[0].token_ids for result in results}) >= 6


def test_prompt_logprobs_cover_the_prompt_with_chunks_and_cached_prefixes(folder: Path) -> None:
    prompt = "x" * 100
    with LLM.from_spec(llama_spec(folder)) as llm:
        params = SamplingParams(max_tokens=2, prompt_logprobs=2, temperature=0.0)
        first, again = (llm.generate(prompt, params, use_tqdm=False)[0] for _ in range(2))
        assert first.prompt_logprobs is not None
        assert [entry.token_id for entry in first.prompt_logprobs[1:]] == list(b"x" * 99)
        assert again.prompt_logprobs == first.prompt_logprobs


def test_a_killed_engine_is_noticed_within_a_second(folder: Path) -> None:
    async def main() -> None:
        engine = await AsyncEngine.start(llama_spec(folder))
        stream = engine.generate("x", SamplingParams(max_tokens=120, ignore_eos=True), "r")
        await anext(stream)
        (host,) = engine.hosts
        assert isinstance(host, EngineProcess)
        os.kill(host.pid, signal.SIGKILL)
        started_s = time.monotonic()
        with pytest.raises(EngineDead):
            async for _ in stream:
                pass
        assert time.monotonic() - started_s < 1
        await engine.shutdown()

    asyncio.run(main())
