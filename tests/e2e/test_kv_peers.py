"""Engines that give each other KV blocks: of other block sizes and ranks, over both wires, and
with peers that end in the middle."""

from __future__ import annotations

import secrets
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.engine.messages import EngineRequest, RequestUpdate
from dovetail.errors import ConfigError
from dovetail_plugins.kv_connectors import _peer_client
from support import kv_engines, samples
from support.inside import block_store_of, core_of, host_blocks_of, kv_transfer_of, runner_of
from support.kv_engines import ENGINE, Paths, forget, loaded, peer, settle, tokens, told

paths = pytest.fixture(scope="module")(kv_engines.checkpoints)
pytestmark = pytest.mark.e2e

LONG = [3 + (7 * i + i // 9) % 60 for i in range(110)]
PROMPTS = [LONG, LONG[:90], [*LONG[:66], 5, 6, 7], [9, 8, 7, *LONG[:80]]]


def ask(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[GenerationResult]:
    return kv_engines.ask(llm, prompts)


@pytest.fixture
def port() -> int:
    """Return a port, with room behind it, that no other test has."""
    return kv_engines.free_port()


TWO = {"tensor_parallel_size": 2}
INT8 = {"kv_cache_dtype": "int8"}
PAIRS = [
    ("LlamaForCausalLM", {}, {}),
    ("LlamaForCausalLM", {"block_size": 16}, {"block_size": 64}),
    ("LlamaForCausalLM", INT8, {"block_size": 64} | INT8),
    ("MistralForCausalLM", {"block_size": 16}, {"block_size": 32}),
    ("Gemma3ForCausalLM", {"block_size": 32}, {"block_size": 16}),
    ("DeepseekV2ForCausalLM", {"block_size": 16}, {"block_size": 32}),
    ("MambaForCausalLM", {"block_size": 16}, {"block_size": 32}),
    ("BambaForCausalLM", {}, {}),
]
"""A family, and the flags of the engine that computes and of the one that takes over."""
MORE_PAIRS = [
    ("Lfm2ForCausalLM", {}, {}),
    ("LlamaForCausalLM", {"block_size": 64}, {"block_size": 16}),
    ("LlamaForCausalLM", TWO, {"block_size": 32}),
    ("LlamaForCausalLM", {"block_size": 32}, TWO),
    ("MistralForCausalLM", TWO, TWO),
    ("Gemma3ForCausalLM", {"block_size": 32} | TWO, {"block_size": 16}),
    ("DeepseekV2ForCausalLM", TWO, {"block_size": 32}),
    ("DeepseekV2ForCausalLM", {}, TWO),
    ("BambaForCausalLM", TWO, TWO),
]


@pytest.mark.parametrize(("family", "first", "second"), PAIRS + MORE_PAIRS * samples.IS_FULL)
def test_another_engine_goes_on_from_the_blocks(
    family: str, first: dict[str, Any], second: dict[str, Any], paths: Paths, port: int
) -> None:
    wide = {"head_dim": 16} if "kv_cache_dtype" in first else {}  # for the native kernel
    model = {"model": str(paths(family, **wide)), **ENGINE}
    with LLM(**model, **first, **peer(port, 0, "kv_producer")) as one:
        computed, warm = ask(one), ask(one)
        settle(one)
        assert loaded(one) == 0
        with LLM(**model, **second, **peer(port, 1, "kv_consumer")) as other:
            taken = ask(other)
            assert loaded(other) > 0
            assert tokens(taken) == tokens(computed)
            if first == second:
                assert told(taken[:1]) == told(warm[:1])
                assert taken[0].num_cached_tokens == warm[0].num_cached_tokens > 0
            core_of(other).check_idle()


def test_engines_of_one_and_two_ranks_give_each_other_their_heads(
    paths: Paths, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the second engine started in no time: the first has asked for it in vain before.
    monkeypatch.setattr(_peer_client, "LEFT_ALONE_S", 1000.0)
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    mine, theirs = PROMPTS[:2], [list(reversed(prompt)) for prompt in PROMPTS[:2]]
    few = {"num_gpu_blocks_override": 20}
    with LLM(**model, **few, **peer(port, 0), block_size=32) as one:
        wanted = tokens(ask(one, theirs))  # which the other has to compute itself
        host_blocks_of(block_store_of(runner_of(one))).clear()
        computed = tokens(ask(one, mine))
        settle(one)
        with LLM(**model, **few, **peer(port, 1), **TWO) as two:
            assert tokens(ask(two, mine)) == computed and loaded(two) >= 64
            assert tokens(ask(two, theirs)) == wanted
            settle(two)
            forget(one)
            before = loaded(one)
            assert tokens(ask(one, theirs)) == wanted and loaded(one) > before + 60
            forget(two)
            before = loaded(two)
            assert tokens(ask(two, theirs)) == wanted and loaded(two) > before + 60


def run(llm: LLM, prompt: list[int], params: dict[str, Any] | None) -> RequestUpdate:
    """Run one request with kv_transfer_params; return the update that ends it."""
    core = core_of(llm)
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


def test_a_request_names_the_engine_that_has_its_prompt(paths: Paths, port: int) -> None:
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
        core_of(other).reset_prefix_cache()
    with LLM(**model, **peer(port, 1, "kv_consumer", kv_load_failure_policy="fail")) as other:
        failed = run(other, LONG, ticket)
        assert failed.finish_reason == "error" and "could not be loaded" in str(failed.error)
    with LLM(**model, **peer(port, 1, "kv_consumer")) as other:
        again = run(other, LONG, ticket)
        assert again.token_ids == first.token_ids and again.num_cached_tokens == 0
        assert kv_transfer_of(core_of(other)).num_failures == 1
        nonsense = {"do_remote_prefill": True, "remote_host": "no.such.host", "remote_port": "x"}
        assert run(other, LONG[:60], nonsense).finish_reason == "length"


def test_an_engine_asks_nobody_that_only_a_request_names(
    paths: Paths, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    alone = {"kv_parallel_size": 1}
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        named = {"remote_host": "127.0.0.1", "remote_port": door.getsockname()[1]}
        with LLM(**model, **peer(port, 0, "kv_consumer", **alone)) as engine:
            assert run(engine, LONG, {"do_remote_prefill": True} | named).finish_reason == "length"
        with pytest.raises(BlockingIOError):
            door.accept()
    with (
        LLM(**model, **peer(port, 0, "kv_producer", **alone)) as one,
        LLM(**model, **peer(port, 1, "kv_consumer", extra={"asks_any": True}, **alone)) as other,
    ):
        ticket = run(one, LONG, ASKED).transfer
        assert ticket is not None and run(other, LONG, ticket).num_cached_tokens == 96


def test_engines_of_other_machines_prove_a_secret(
    paths: Paths, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    for name, text in (("right", "0123456789abcdef"), ("wrong", "fedcba9876543210")):
        (tmp_path / name).write_text(text)
    # As if no engine of this machine were there: what is left is TCP.
    monkeypatch.setattr(_peer_client, "is_served", lambda place: False)
    with LLM(
        **model, **peer(port, 0, "kv_producer", extra={"secret_file": str(tmp_path / "right")})
    ) as one:
        computed = ask(one)
        settle(one)
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
    keys: dict[str, Any], said: str, paths: Paths, port: int
) -> None:
    flags = peer(port, 0, **keys)
    with pytest.raises(ConfigError, match=said):
        LLM(model=str(paths("LlamaForCausalLM")), **ENGINE, **flags)


def test_two_engines_at_one_port(paths: Paths, port: int) -> None:
    model = {"model": str(paths("LlamaForCausalLM")), **ENGINE}
    with LLM(**model, **peer(port, 0)), pytest.raises(ConfigError, match="another process"):
        LLM(**model, **peer(port, 0))


def test_another_model_gets_nothing(paths: Paths, port: int) -> None:
    one_path = paths("LlamaForCausalLM")
    other_path = paths("LlamaForCausalLM", rms_norm_eps=1e-3)
    with (
        LLM(model=str(one_path), **ENGINE, **peer(port, 0)) as one,
        LLM(model=str(other_path), **ENGINE, **peer(port, 1)) as other,
    ):
        ask(one)
        settle(one)
        ask(other)
        assert loaded(other) == 0
