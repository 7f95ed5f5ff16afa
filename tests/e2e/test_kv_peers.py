"""Engines that give each other KV blocks: of other block sizes and ranks, over both wires, and
with peers that end in the middle."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.outputs import GenerationResult
from dovetail.engine.messages import EngineRequest, RequestUpdate
from dovetail.errors import ConfigError
from dovetail.testing.tiny_models import write_tiny_checkpoint

pytestmark = pytest.mark.e2e

ENGINE: dict[str, Any] = {"max_model_len": 128, "dtype": "float32", "use_tqdm_on_load": False}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)
LONG = [3 + (7 * i + i // 9) % 60 for i in range(110)]
PROMPTS = [LONG, LONG[:90], [*LONG[:66], 5, 6, 7], [9, 8, 7, *LONG[:80]]]


@pytest.fixture
def port() -> int:
    """Return a port, with room behind it, that no other test has."""
    return 20_000 + secrets.randbelow(900) * 40


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    made: dict[str, Path] = {}

    def path(architecture: str, **fields: Any) -> Path:
        name = f"{architecture}{sorted(fields.items())}"
        if name not in made:
            folder = tmp_path_factory.mktemp(architecture)
            made[name] = write_tiny_checkpoint(folder, architecture, **fields)
        return made[name]

    yield path


def peer(port: int, rank: int, role: str = "kv_both", **keys: Any) -> dict[str, Any]:
    """Return the flag of one of two engines that ask each other."""
    extra = keys.pop("extra", {})
    ports = {"kv_port": port, "kv_rank": rank, "kv_parallel_size": 2}
    names = {"kv_connector": "p2p", "kv_role": role, "kv_connector_extra_config": extra}
    return {"kv_transfer_config": {**names, **ports, **keys}}


def ask(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[GenerationResult]:
    results = [llm.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert all(result.error is None for result in results), [r.error for r in results]
    return results


def tokens(results: list[GenerationResult]) -> list[Any]:
    return [one.outputs[0].token_ids for one in results]


def told(results: list[GenerationResult]) -> list[Any]:
    """Return all that the answers say, to the last bit."""
    return [
        (one.outputs[0].token_ids, [(p.logprob, p.top_logprobs) for p in one.outputs[0].logprobs])
        for one in results
    ]


def loaded(llm: LLM) -> int:
    return llm._engine.core.cache.num_loaded_tokens


def written(llm: LLM) -> None:
    """Return once a bare order has brought the ranks all that is to be written."""
    deadline_s = time.monotonic() + 10
    while llm._engine.core._elsewhere.collect() and time.monotonic() < deadline_s:
        llm._engine.core.step()


PAIRS = [
    ("LlamaForCausalLM", {}, {}),
    ("LlamaForCausalLM", {"block_size": 16}, {"block_size": 64}),
    ("LlamaForCausalLM", {"block_size": 64}, {"block_size": 16}),
    ("LlamaForCausalLM", {"tensor_parallel_size": 2}, {"block_size": 32}),
    ("LlamaForCausalLM", {"block_size": 32}, {"tensor_parallel_size": 2}),
    ("LlamaForCausalLM", {"kv_cache_dtype": "int8"}, {"block_size": 64, "kv_cache_dtype": "int8"}),
    ("MistralForCausalLM", {"block_size": 16}, {"block_size": 32}),
    ("Gemma3ForCausalLM", {"block_size": 32, "tensor_parallel_size": 2}, {"block_size": 16}),
    ("DeepseekV2ForCausalLM", {"tensor_parallel_size": 2}, {"block_size": 32}),
    ("MambaForCausalLM", {"block_size": 16}, {"block_size": 32}),
    ("BambaForCausalLM", {}, {}),
    ("Lfm2ForCausalLM", {}, {}),
]
"""A family, and the flags of the engine that computes and of the one that takes over."""


@pytest.mark.parametrize(
    ("architecture", "first", "second"),
    PAIRS,
    ids=[f"{a}-{b}-{c}".replace(" ", "") for a, b, c in PAIRS],
)
def test_another_engine_goes_on_from_the_blocks(
    architecture: str,
    first: dict[str, Any],
    second: dict[str, Any],
    paths: Callable[..., Path],
    port: int,
) -> None:
    wide = {"head_dim": 16} if "kv_cache_dtype" in first else {}  # for the native kernel
    model = {"model": str(paths(architecture, **wide)), **ENGINE}
    with LLM(**model, **second) as llm:
        cold, warm = ask(llm), ask(llm)
    giving = peer(port, 0, "kv_producer")
    with LLM(**model, **first, **giving) as one:
        computed = ask(one)
        written(one)
        with LLM(**model, **second, **peer(port, 1, "kv_consumer")) as other:
            taken = ask(other)
            assert loaded(other) > 0
            assert tokens(taken) == tokens(cold) == tokens(computed)
            if first == second:
                assert told(taken[:1]) == told(warm[:1])
                assert taken[0].num_cached_tokens == warm[0].num_cached_tokens > 0
            other._engine.core.check_idle()


def run(llm: LLM, prompt: list[int], params: dict[str, Any] | None) -> RequestUpdate:
    """Run one request with kv_transfer_params; return the update that ends it."""
    core = llm._engine.core
    sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    request_id = secrets.token_hex(4)
    core.add(
        EngineRequest(
            request_id=request_id,
            prompt_ids=tuple(prompt),
            sampling=sampling,
            seed=0,
            kv_transfer=params,
        )
    )
    token_ids: tuple[int, ...] = ()
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for update in core.step().updates:
            token_ids += update.token_ids
            if update.finish_reason is not None:
                core.step()  # brings the ranks what is to be written
                return RequestUpdate(
                    request_id=update.request_id,
                    token_ids=token_ids,
                    finish_reason=update.finish_reason,
                    error=update.error,
                    num_cached_tokens=update.num_cached_tokens,
                    transfer=update.transfer,
                )
    raise AssertionError("the request hangs")


ASKED = {"do_remote_decode": True, "do_remote_prefill": False}


def test_a_request_names_the_engine_that_has_its_prompt(
    paths: Callable[..., Path], port: int
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    alone = {"kv_parallel_size": 1, "engine_id": "first"}
    with (
        LLM(**model, **peer(port, 0, "kv_producer", **alone)) as one,
        LLM(**model, **peer(port, 1, "kv_consumer", kv_load_failure_policy="fail")) as other,
    ):
        first = run(one, LONG, ASKED)
        ticket = first.transfer
        assert ticket is not None and run(one, LONG, None).transfer is None
        assert ticket["do_remote_prefill"] and not ticket["do_remote_decode"]
        assert (ticket["remote_host"], ticket["remote_port"]) == ("127.0.0.1", port)
        assert (ticket["remote_engine_id"], ticket["remote_num_tokens"]) == ("first", 112)
        second = run(other, LONG, ticket)
        assert second.token_ids == first.token_ids and second.num_cached_tokens == 96
        other._engine.core.reset_prefix_cache()
    with LLM(**model, **peer(port, 1, "kv_consumer", kv_load_failure_policy="fail")) as other:
        failed = run(other, LONG, ticket)
        assert failed.finish_reason == "error" and "could not be loaded" in str(failed.error)
    with LLM(**model, **peer(port, 1, "kv_consumer")) as other:
        again = run(other, LONG, ticket)
        assert again.token_ids == first.token_ids and again.num_cached_tokens == 0
        assert other._engine.core._elsewhere.num_failures == 1
        nonsense = {"do_remote_prefill": True, "remote_host": "no.such.host", "remote_port": "x"}
        assert run(other, LONG[:60], nonsense).finish_reason == "length"


def test_engines_of_other_machines_prove_a_secret(
    paths: Callable[..., Path], port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail_plugins.kv_connectors import _peer_client

    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    for name, text in (("right", "0123456789abcdef"), ("wrong", "fedcba9876543210")):
        (tmp_path / name).write_text(text)
    # As if no engine of this machine were there: what is left is TCP.
    monkeypatch.setattr(_peer_client, "is_served", lambda place: False)
    with LLM(
        **model, **peer(port, 0, "kv_producer", extra={"secret_file": str(tmp_path / "right")})
    ) as one:
        computed = ask(one)
        written(one)
        for name, is_let_in in (("wrong", False), ("right", True)):
            extra = {"secret_file": str(tmp_path / name)}
            with LLM(**model, **peer(port, 1, "kv_consumer", extra=extra)) as other:
                assert tokens(ask(other)) == tokens(computed)
                assert (loaded(other) > 0) == is_let_in
        with LLM(**model, **peer(port, 1, "kv_consumer")) as other:
            ask(other, [LONG])
            assert loaded(other) == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kv_ip": "192.0.2.1"}, "prove a secret"),
        ({"kv_ip": "0.0.0.0"}, "not an address that other engines"),
        ({"extra": {"peers": ["nowhere"]}}, "HOST:PORT"),
        ({"extra": {"secret_file": "/no/such/file"}}, "cannot be read"),
        ({"kv_unit_tokens": 7}, "does not divide"),
    ],
)
def test_what_cannot_work_says_why(
    keys: dict[str, Any], said: str, paths: Callable[..., Path], port: int
) -> None:
    flags = peer(port, 0, **keys)
    with pytest.raises(ConfigError, match=said):
        LLM(model=str(paths("LlamaForCausalLM")), **ENGINE, **flags)


def test_two_engines_at_one_port(paths: Callable[..., Path], port: int) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **peer(port, 0)), pytest.raises(ConfigError, match="another process"):
        LLM(**model, **peer(port, 0))


def test_another_model_gets_nothing(paths: Callable[..., Path], port: int) -> None:
    one_path = paths("LlamaForCausalLM")
    other_path = paths("LlamaForCausalLM", rms_norm_eps=1e-3)
    with (
        LLM(model=str(one_path), **ENGINE, **peer(port, 0)) as one,
        LLM(model=str(other_path), **ENGINE, **peer(port, 1)) as other,
    ):
        ask(one)
        written(one)
        ask(other)
        assert loaded(other) == 0
