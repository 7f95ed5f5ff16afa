"""Two ranks answer as one does, through the executor that users get, and end in order."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dovetail import LLM, SamplingParams
from dovetail.cli.main import main
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.engine.step_stats import StepCounter
from dovetail.interfaces.data.constraint import Regex
from dovetail.interfaces.stats import StepStats
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e

TOLERANCE = 2e-4
ENGINE: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_batched_tokens": 24,
    "dtype": "float32",
    "use_tqdm_on_load": False,
}
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=4)
SEEDED = SamplingParams(temperature=1, seed=7, max_tokens=14, ignore_eos=True, logprobs=4)
SHAPE = Regex("[ab]{3}c[0-9]+")
TOLD = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2)
REPEATED = [11, 12, 13, 14] * 6
PROMPTS = [list(range(3, 22)), list(range(40, 73)), REPEATED, [5, 6, 7], list(range(3, 30))]


def answers(path: Path, **flags: Any) -> list[GenerationResult]:
    """Return what an engine answers to all requests at once, and to the first ones once more."""
    with LLM(model=str(path), **{**ENGINE, **flags}) as llm:
        compiled = llm.compile_constraint(SHAPE)
        shaped = SamplingParams(temperature=1, seed=3, max_tokens=14, constraint=compiled)
        requests = [GREEDY, SEEDED, GREEDY, shaped, TOLD]
        first = llm.generate(PROMPTS, requests, use_tqdm=False)
        again = llm.generate(PROMPTS[:2], requests[:2], use_tqdm=False)
        if flags.get("enable_prefix_caching", True):
            assert again[1].num_cached_tokens > 0
        return [*first, *again]


def assert_same(ours: list[GenerationResult], wanted: list[GenerationResult]) -> None:
    """Assert equal tokens and texts, and logprobs equal up to the order of sums."""
    for mine, theirs in zip(ours, wanted, strict=True):
        assert mine.error is None, mine.error
        (one,), (other,) = mine.outputs, theirs.outputs
        assert (one.token_ids, one.text) == (other.token_ids, other.text)
        assert one.finish_reason == other.finish_reason
        for one_place, other_place in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert one_place.top_logprobs == pytest.approx(other_place.top_logprobs, abs=TOLERANCE)
        assert bool(mine.prompt_logprobs) == bool(theirs.prompt_logprobs)


OF_RANKS = {"communicator", "enable_dbo", "dbo_decode_token_threshold",
            "dbo_prefill_token_threshold", "decode_context_parallel_size", "enable_expert_parallel",
            "expert_placement_strategy", "enable_eplb", "eplb_config", "num_threads",
            "tensor_parallel_size", "pipeline_parallel_size", "pipeline_layer_split",
            "cpu_cores"}  # fmt: skip
"""Flags of a case that one rank does without."""
HALVES: dict[str, Any] = {
    "enable_dbo": True,
    "dbo_decode_token_threshold": 2,
    "dbo_prefill_token_threshold": 4,
    "communicator": "gloo",
}
STAGES: dict[str, Any] = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # One KV head for two ranks, a preempting cache and drafts, in recorded steps.
    "crowded": (
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 1},
        {
            "num_gpu_blocks_override": 9,
            "block_size": 16,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        },
    ),
    "swapped": (
        "GPT2LMHeadModel",
        {},
        {
            "num_gpu_blocks_override": 14,
            "block_size": 8,
            "swap_space": 0.01,
            "async_scheduling": True,
            "communicator": "gloo",
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        },
    ),
    # Latents, all of them on each rank, for half of the heads: preempted, swapped, expanded.
    "latents": (
        "DeepseekV3ForCausalLM",
        {},
        {
            "num_gpu_blocks_override": 14,
            "block_size": 8,
            "swap_space": 0.01,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        },
    ),
    "experts": (
        "Qwen3MoeForCausalLM",
        {"head_dim": 16},
        {"kv_cache_dtype": "int8", "max_parallel_loading_workers": 1},
    ),
    # Whole experts in 8 bits on each rank, which move; their inner size does not divide by two.
    "own experts": (
        "Qwen2MoeForCausalLM",
        {"moe_intermediate_size": 15},
        {
            "quantization": "experts_int8",
            "enable_expert_parallel": True,
            "expert_placement_strategy": "round_robin",
            "enable_eplb": True,
            "eplb_config": {"step_interval": 4, "window_size": 6, "num_redundant_experts": 2},
        },
    ),
    # Sinks by head, windows, and whole experts with biases, which move.
    "sinks": (
        "GptOssForCausalLM",
        {"head_dim": 16},
        {
            "enable_expert_parallel": True,
            "enable_eplb": True,
            "eplb_config": {"step_interval": 4, "window_size": 6, "num_redundant_experts": 2},
        },
    ),
    # Each request's cache in two halves, swapped.
    "divided windows": (
        "Gemma3ForCausalLM",
        {"num_key_value_heads": 1, "sliding_window": 8},
        {
            "decode_context_parallel_size": 2,
            "num_gpu_blocks_override": 10,
            "block_size": 8,
            "attention_backend": "torch_sdpa",
            "kv_cache_dtype": "bfloat16",
            "enable_prefix_caching": False,
            "swap_space": 0.01,
            "async_scheduling": True,
            "communicator": "gloo",
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        },
    ),
    "quantized": (
        "LlamaForCausalLM",
        {"hidden_size": 128, "intermediate_size": 256},
        {"quantization": "int4-plain", "kv_cache_dtype": "bfloat16"},
    ),
    # Heads with their states on two ranks, the norm over all of them; swapped in the middle.
    "states": (
        "Mamba2ForCausalLM",
        {"n_groups": 1},
        {
            "num_gpu_blocks_override": 9,
            "block_size": 16,
            "swap_space": 0.01,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        },
    ),
    # Fused projections by key head, gated attention whose one kv head both ranks hold.
    "delta": ("Qwen3NextForCausalLM", {"num_key_value_heads": 1}, {"block_size": 16}),
    # The states are on the first stage, keys and values on the second.
    "stages, states": (
        "Lfm2ForCausalLM",
        {},
        {**STAGES, "block_size": 16, "plugin_options": {"scheduler": {"growth_blocks": 0}}},
    ),
    # Three layers over two stages; a preempting cache, drafts and recorded steps.
    "stages, crowded": (
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 1, "num_hidden_layers": 3, "tie_word_embeddings": True},
        {
            **STAGES,
            "num_gpu_blocks_override": 9,
            "block_size": 16,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        },
    ),
    # The windows are all on the first stage, and the full layer on the second.
    "stages, windows": (
        "Gemma3ForCausalLM",
        {},
        {**STAGES, "kv_cache_dtype": "int8", "communicator": "gloo", "async_scheduling": True},
    ),
    "stages of two ranks": (
        "GPT2LMHeadModel",
        {"n_layer": 3},
        {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "pipeline_layer_split": "1,2",
            "cpu_cores": "nobind",
            "num_threads": 1,
            "num_gpu_blocks_override": 14,
            "block_size": 8,
            "swap_space": 0.01,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        },
    ),
    # Two stages, each of two ranks that have half of every request's cache: preempted, shared and
    # drafted upon.
    "stages of divided contexts": (
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 1, "num_hidden_layers": 3},
        {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "decode_context_parallel_size": 2,
            "cpu_cores": "nobind",
            "num_threads": 1,
            "num_gpu_blocks_override": 6,
            "block_size": 16,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        },
    ),
    # Two half batches whose exchanges overlap: with a preempting cache, prefixes and drafts.
    "half batches, crowded": (
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 1},
        {
            **HALVES,
            "num_gpu_blocks_override": 9,
            "block_size": 16,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        },
    ),
    # States beside drafts, and experts.
    "half batches, states": (
        "Qwen3NextForCausalLM",
        {"num_key_value_heads": 1},
        {
            **HALVES,
            "block_size": 16,
            "enable_expert_parallel": True,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        },
    ),
    # Each stage divides the hidden states that it receives, and each request's cache.
    "half batches, stages": (
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 1, "num_hidden_layers": 3},
        {
            **HALVES,
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "decode_context_parallel_size": 2,
            "cpu_cores": "nobind",
            "num_threads": 1,
            "num_gpu_blocks_override": 14,
            "block_size": 16,
        },
    ),
}


LIKE_OTHERS = frozenset({
    "swapped", "stages, states", "stages, windows", "stages of two ranks",
    "half batches, crowded", "half batches, stages",
})  # fmt: skip
"""Cases whose parts are in others."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.full_only) if case in LIKE_OTHERS else case
        for case in sorted(CASES)
    ],
)
def test_two_ranks_answer_as_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config, flags = CASES[case]
    path = write_tiny_checkpoint(tmp_path / "model", name, **config)
    alone = {key: value for key, value in flags.items() if key not in OF_RANKS}
    if "decode_context_parallel_size" in flags:  # a block of theirs is two of one rank's
        alone["num_gpu_blocks_override"] *= 2
    divided = {"tensor_parallel_size": 2, **flags}
    own, halved = StepCounter.take, list[int]()

    def take(self: StepCounter, *counts: Any, **told: Any) -> StepStats:
        stats = own(self, *counts, **told)
        halved.append(stats.divided_steps)
        return stats

    monkeypatch.setattr(StepCounter, "take", take)
    found = answers(path, **divided)
    assert (sum(halved) >= 5) == ("enable_dbo" in flags)
    assert_same(found, answers(path, **alone))


def test_stages_sleep_and_wake_up(tmp_path: Path) -> None:
    """A request after the sleep of two stages gets the answer of before, with its weights read
    again."""
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    with LLM(model=str(path), enable_sleep_mode=True, **STAGES, **ENGINE) as llm:
        before = llm.generate(PROMPTS[:3], GREEDY, use_tqdm=False)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert_same(llm.generate(PROMPTS[:3], GREEDY, use_tqdm=False), before)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tensor-parallel-size", "3"], "8 attention heads cannot be divided evenly over 3"),
        (["-tp", "8", "--num-threads", "1"], "8 ranks need a core each, and this process may use"),
        (["-tp", "2", "-pp", "2"], "2 (--tensor-parallel-size times --pipeline-parallel-size)"),
        (["-pp", "4"], "--pipeline-parallel-size: 4 ranks need a core each"),
        (["-pp", "2", "--model-impl", "transformers"], "transformers cannot be divided into"),
        (["-tp", "2", "--distributed-executor-backend", "uni"], "executor uni runs one rank"),
        (["-tp", "2", "--cpu-cores", "0-1|1"], "1 is in several ranks' lists"),
        (["-tp", "2", "-dcp", "2"], "each of 4 KV heads is on 1 of 2 ranks"),
        (["-tp", "2", "--enable-eplb"], "only whole experts move between ranks"),
        (["-tp", "1", "--cpu-cores", "0|1"], "2 lists of CPUs for 1 rank"),
        (["-tp", "2", "--communicator", "nccl"], "nccl"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(
    words: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dovetail.config.rules.parallel.ranks.usable_cores", lambda *asked: 2)
    monkeypatch.setattr(
        "dovetail.config.rules.machine.cores.usable_processors", lambda *asked: {0, 1}
    )
    assert main(["serve", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and "fix:" in error


def start() -> ServerProcess:
    """Return a server with two ranks of the demo model; a step may take two seconds."""
    args = ("--port", "0", "--tensor-parallel-size", "2", "--engine-step-timeout", "2")
    return ServerProcess(*args, env={"OMP_NUM_THREADS": "1"}).wait_ready()


def test_a_server_with_experts_on_two_ranks_answers(tmp_path: Path) -> None:
    """Mixtral through HTTP: the tokens of one rank's engine, while experts move."""
    path = write_tiny_checkpoint(tmp_path / "model", "MixtralForCausalLM", intermediate_size=33)
    with LLM(model=str(path), **ENGINE) as llm:
        wanted = llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
    words = ["--model", str(path), "--served-model-name", "m", "--dtype", "float32"]
    flags = ["-tp", "2", "--enable-expert-parallel", "--max-model-len", "64", "--enable-eplb"]
    flags += ["--eplb-config", '{"step_interval": 2, "log_balancedness": true}']
    body = {"model": "m", "prompt": PROMPTS[:2], "max_tokens": 14, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True}
    env = {"OMP_NUM_THREADS": "1"}
    with ServerProcess("--port", "0", *words, *flags, env=env).wait_ready() as server:
        with server.client() as client:
            answer = client.post("/v1/completions", json=body).raise_for_status().json()
        assert [choice["token_ids"] for choice in answer["choices"]] == [
            list(one.outputs[0].token_ids) for one in wanted
        ]
        assert any(re.search(r"experts: balance .* after [1-9]\d* moves", x) for x in server.lines)


def ranks_of(server: ServerProcess) -> list[psutil.Process]:
    """Return the rank processes in the order of their start."""
    found = [
        c for c in server.descendants() if "dovetail_plugins.ranks.rank_process" in c.cmdline()
    ]
    return sorted(found, key=lambda child: child.pid)


def shared_memory() -> set[str]:
    """Return the names in the folder of shared memory."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    before = shared_memory()
    with start() as made:
        yield made
        assert made.orphans(2) == []
    assert shared_memory() <= before


class Load:
    """Streams that run until the engine is gone; `ends` are their last events."""

    def __init__(self, url: str) -> None:
        self.ends: list[str] = []
        self.begun: set[int] = set()
        self._threads = [threading.Thread(target=self._run, args=(url,)) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, url: str) -> None:
        body = {"prompt": "One two", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        last = ""
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                self.begun.add(threading.get_ident())
                last = line or last
        self.ends.append(last)

    def wait(self) -> None:
        """Wait until every stream has ended."""
        for thread in self._threads:
            thread.join(20)


def seconds_until(is_so: Callable[[], bool], limit_s: float) -> float:
    """Return after how long something is so. Raises: TimeoutError"""
    started_s = time.monotonic()
    while not is_so():
        if time.monotonic() - started_s > limit_s:
            raise TimeoutError(f"not so within {limit_s} s")
        time.sleep(0.01)
    return time.monotonic() - started_s


def test_a_server_with_two_ranks_answers_and_starts_both_again(server: ServerProcess) -> None:
    ranks = ranks_of(server)
    assert len(ranks) == 2
    with server.client() as client:
        body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        answer = client.post("/v1/completions", json=body | {"logprobs": 1}).raise_for_status()
        assert "Paris" in answer.json()["choices"][0]["text"]
        load = Load(server.url)
        seconds_until(lambda: len(load.begun) == 3, 30)
        ranks[1].kill()
        assert seconds_until(lambda: client.get("/health").status_code == 503, 5) < 1
    load.wait()
    assert len(load.ends) == 3 and all("engine_dead" in end for end in load.ends)
    assert any(f"rank 1 (process {ranks[1].pid}) was killed by signal 9" in e for e in load.ends)
    with server.client() as client:
        again = client.post("/v1/completions", json=body | {"logprobs": 1}).raise_for_status()
        assert again.json()["choices"] == answer.json()["choices"]
        assert [one["restarts"] for one in client.get("/health").json()["engines"]] == [1]
    assert {rank.pid for rank in ranks_of(server)}.isdisjoint(rank.pid for rank in ranks)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0


def test_a_rank_that_is_stopped_ends_requests(server: ServerProcess) -> None:
    load = Load(server.url)
    seconds_until(lambda: len(load.begun) == 3, 30)
    ranks_of(server)[1].send_signal(signal.SIGSTOP)
    with server.client() as client:
        assert seconds_until(lambda: client.get("/health").status_code == 503, 8) < 4
    load.wait()
    assert all("--engine-step-timeout" in end for end in load.ends)
    server.process.kill()  # it would end by itself; what is stopped must not stay either way
