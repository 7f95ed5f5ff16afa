"""--enable-sleep-mode: memory goes back to the system while the engine runs, and answers stay."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError, EngineAsleep, RequestError
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.inside import caches_of, runner_of
from support.server_process import ServerProcess

MIB = 1 << 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = list(range(5, 45))
KV_MIB = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Llama of some 50 MB."""
    made = tmp_path_factory.mktemp("m") / "llama"
    write_tiny_checkpoint(
        made, "LlamaForCausalLM", hidden_size=512, intermediate_size=2560, num_hidden_layers=3
    )
    write_tiny_tokenizer(made)
    return made


def open_llm(folder: Path, **flags: Any) -> LLM:
    quick = {"device": "cpu", "use_tqdm_on_load": False, "kv_cache_memory_bytes": KV_MIB * MIB}
    return LLM(str(folder), **{"enable_sleep_mode": True, **quick, **flags})


def tokens(llm: LLM) -> tuple[int, ...]:
    return llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def fill_cache(llm: LLM) -> None:
    """Touch every page of the cache, as an engine that has served for a while has."""
    for cache in caches_of(runner_of(llm)).values():
        cache.zero_()


def spans(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return (first page, pages) of the memory behind tensors."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    size = mmap.PAGESIZE
    return [(-(-at // size), kept.nbytes() // size) for at, kept in storages.items()]


def resident_mib(pages: list[tuple[int, int]]) -> float:
    """Return how much of some memory is there, exactly (proc_pid_pagemap(5): bit 63)."""
    count = 0
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        for first, number in pages:
            entries = np.frombuffer(os.pread(file.fileno(), 8 * number, 8 * first), np.uint64)
            count += int((entries >> np.uint64(63)).sum())
    return count * mmap.PAGESIZE / MIB


def goes(pages: list[tuple[int, int]], limit_mib: float) -> bool:
    """Return whether less than the limit is left within seconds: the thread that ran the steps may
    hold what it last touched until it is scheduled again."""
    until_s = time.monotonic() + 5.0
    while resident_mib(pages) >= limit_mib and time.monotonic() < until_s:
        time.sleep(0.05)
    return resident_mib(pages) < limit_mib


def process_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("level", [1, 2])
def test_enable_sleep_mode(folder: Path, level: int, async_scheduling: bool) -> None:
    """The pages of weights and cache go back to the system; the same tokens are drawn after."""
    with open_llm(folder, async_scheduling=async_scheduling) as llm:
        wanted = tokens(llm)
        runner = runner_of(llm)
        fill_cache(llm)
        weights, cache = spans(runner.weights()), spans(caches_of(runner).values())
        weights_mib, awake_mib = resident_mib(weights), process_mib()
        tensors = [weakref.ref(tensor) for tensor in caches_of(runner).values()]
        assert weights_mib > 45
        assert resident_mib(cache) > 0.95 * KV_MIB
        llm.sleep(level)
        assert llm.is_sleeping
        assert goes(weights, 0.05 * weights_mib)
        alive = sum(tensor() is not None for tensor in tensors)
        assert goes(cache, 0.05 * KV_MIB), f"{alive} of its tensors are still referred to"
        assert process_mib() < awake_mib - 0.75 * (weights_mib + KV_MIB)
        with pytest.raises(EngineAsleep, match=r"LLM\.wake_up"):
            tokens(llm)
        llm.wake_up(["weights"])
        assert llm.is_sleeping
        llm.wake_up(["kv_cache"])
        assert not llm.is_sleeping
        again = llm.generate([PROMPT], GREEDY, use_tqdm=False)[0]
        assert again.outputs[0].token_ids == wanted
        assert again.num_cached_tokens == 0
        assert process_mib() < awake_mib + 15


def test_an_engine_may_end_asleep(folder: Path) -> None:
    """What is kept lies in a file: it is closed with the engine."""

    def files() -> set[Path]:
        """Return the open files without a name."""
        links = Path("/proc/self/fd").iterdir()
        found = {link.readlink() for link in links if link.is_symlink()}
        return {
            one
            for one in found
            if one.is_relative_to(tempfile.gettempdir()) and one.name.endswith("(deleted)")
        }

    before = files()
    with open_llm(folder) as llm:
        llm.sleep(1)
        assert files() - before
    assert files() <= before


def test_scales_of_the_cache_are_measured_again(folder: Path) -> None:
    flags = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}
    with open_llm(folder, **flags) as llm:
        wanted = tokens(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up(["kv_cache"])
            llm.wake_up()
            assert tokens(llm) == wanted


def test_a_checkpoint_that_has_gone_leaves_the_engine_asleep(folder: Path) -> None:
    weights, hidden = folder / "model.safetensors", folder / "away"
    with open_llm(folder) as llm:
        wanted = tokens(llm)
        llm.sleep(2)
        weights.rename(hidden)
        with pytest.raises(RequestError):
            llm.wake_up()
        assert llm.is_sleeping
        hidden.rename(weights)
        llm.wake_up()
        assert tokens(llm) == wanted


def test_only_where_it_was_allowed(folder: Path) -> None:
    with open_llm(folder, enable_sleep_mode=False) as llm:
        with pytest.raises(RequestError, match="sleep mode is off"):
            llm.sleep()
        assert tokens(llm)
    with pytest.raises(ConfigError, match="does not support sleep mode") as caught:
        open_llm(folder, worker_cls="dovetail_testing.tiny.worker:TinyWorker")
    assert caught.value.where == "--enable-sleep-mode"


def test_a_server_sleeps(folder: Path) -> None:
    flags = ("--enable-sleep-mode", "--enable-dev-endpoints", "--kv-cache-memory-bytes", "16m")
    with ServerProcess(str(folder), *flags, "--port", "0") as server:
        server.wait_ready()
        body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        with httpx.Client(base_url=server.url, timeout=30) as client:

            def complete() -> httpx.Response:
                return client.post("/v1/completions", json=body)

            def is_sleeping() -> bool:
                return bool(client.get("/is_sleeping").json()["is_sleeping"])

            wanted = complete().json()["choices"][0]["text"]
            assert not is_sleeping()
            for level in (1, 2):
                assert client.post(f"/sleep?level={level}").status_code == 200
                assert is_sleeping()
                refused = complete()
                assert refused.status_code == 503
                assert "/wake_up" in refused.json()["error"]["message"]
                assert refused.json()["error"]["type"] == "engine_asleep"
                assert client.get("/health").status_code == 200
                assert client.get("/ready").status_code == 503
                assert f"}} {level}.0" in line_of(client, "dovetail:sleep_level")
                assert client.post("/wake_up").status_code == 200
                assert complete().json()["choices"][0]["text"] == wanted
            assert client.post("/sleep?level=3").status_code == 400


def line_of(client: httpx.Client, name: str) -> str:
    lines = client.get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith(name + "{"))
