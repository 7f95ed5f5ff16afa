"""Tiny engines with KV connectors, and what their tests ask them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.engine.worker_calls import worker_call
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of, executor_of, kv_transfer_of, transfer_of

ENGINE: dict[str, Any] = {"max_model_len": 128, "dtype": "float32", "use_tqdm_on_load": False}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)
Paths = Callable[..., Path]


def connected(connector: str, folder: Path | None = None, **keys: Any) -> dict[str, Any]:
    """Return the flag of an engine that keeps blocks, in a folder if one is named."""
    extra = {} if folder is None else {"folder": str(folder)}
    extra |= keys.pop("extra", {})
    names = {"kv_connector": connector, "kv_role": "kv_both"}
    return {"kv_transfer_config": {**names, "kv_connector_extra_config": extra, **keys}}


def peer(port: int, rank: int, role: str = "kv_both", **keys: Any) -> dict[str, Any]:
    """Return the flag of one of two engines that ask each other."""
    ports = {"kv_port": port, "kv_rank": rank, "kv_parallel_size": 2}
    return connected("p2p", kv_role=role, **(ports | keys))


def free_port() -> int:
    """Return a port, with room behind it, that no other test has.

    It is below the ports that the kernel gives to outgoing connections (32768 on).
    """
    return 10_000 + secrets.randbelow(550) * 40


def ask(llm: LLM, prompts: list[list[int]]) -> list[GenerationResult]:
    """Return the answers to prompts, one after the other: then every batch is the same."""
    results = [llm.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert all(result.error is None for result in results), [r.error for r in results]
    return results


def told(results: list[GenerationResult]) -> list[Any]:
    """Return all that the answers say, to the last bit."""
    return [
        (answer.token_ids, [(p.logprob, p.top_logprobs) for p in answer.logprobs or ()])
        for answer in (one.outputs[0] for one in results)
    ]


def tokens(results: list[GenerationResult]) -> list[Any]:
    """Return the answers' tokens."""
    return [one.outputs[0].token_ids for one in results]


def loaded(llm: LLM) -> int:
    """Return how many tokens came from elsewhere since the start."""
    return core_of(llm).cache.num_loaded_tokens


def forget(llm: LLM) -> None:
    """Have the device lose all that it has cached, once what was ordered is with the store."""
    settle(llm)
    core_of(llm).cache.forget_all()


def settle(llm: LLM) -> None:
    """Return once the store has all that it is to get."""
    core = core_of(llm)
    deadline_s = time.monotonic() + 30
    while kv_transfer_of(core).collect() and time.monotonic() < deadline_s:
        core.step()
    executor = executor_of(core)
    if hasattr(executor, "worker"):
        wait_written(executor.worker)
    else:
        executor.collective_rpc(worker_call(wait_written))


def wait_written(worker: Any) -> None:
    """Return once a rank's store has all blocks that its steps have copied."""
    transfer = transfer_of(worker.runner)
    deadline_s = time.monotonic() + 30
    while transfer._pending_bytes:
        assert time.monotonic() < deadline_s, "blocks are not written"
        time.sleep(0.001)


def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paths]:
    """Give where the checkpoint of an architecture is, written when it is first asked for: the body
    of a fixture."""
    made: dict[str, Path] = {}

    def path(architecture: str, **fields: Any) -> Path:
        name = f"{architecture}{sorted(fields.items())}"
        if name not in made:
            folder = tmp_path_factory.mktemp(architecture)
            made[name] = write_tiny_checkpoint(folder, architecture, **fields)
        return made[name]

    yield path
