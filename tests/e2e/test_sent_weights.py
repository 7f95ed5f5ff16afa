"""Weights that a trainer sends, by shared memory or a process group, replace those in use."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from dovetail import LLM, SamplingParams
from dovetail.errors import RequestError
from dovetail_plugins.commands._client import ServerError
from dovetail_plugins.weight_transfer.group import Meeting, TransferGroup, host
from dovetail_plugins.weight_transfer.sent_folder import MEMORY, PREFIX, new_folder
from dovetail_plugins.weight_transfer.shared_weights import SharedWeights
from dovetail_plugins.weight_transfer.trainer_group import TrainerGroup
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(5, 45))
ENGINE: dict[str, Any] = {
    "device": "cpu",
    "use_tqdm_on_load": False,
    "kv_cache_memory_bytes": 4 << 20,
    "block_size": 16,
    "max_model_len": 256,
}
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sent") / "a"
    return write_tiny_checkpoint(
        place, "Qwen3ForCausalLM", tie_word_embeddings=True, max_position_embeddings=512
    )


@pytest.fixture(scope="module")
def first(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def second(first: Tensors) -> Tensors:
    return {name: tensor.flip(0).contiguous() for name, tensor in first.items()}


def answer(llm: LLM) -> tuple[int, tuple[int, ...]]:
    """Return how many tokens were cached, and an answer."""
    (found,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    return found.num_cached_tokens, found.outputs[0].token_ids


@pytest.mark.parametrize("flags", [{}, {"quantization": "int8"}], ids=["plain", "int8"])
def test_shared_memory_is_read_with_its_key_alone(
    flags: dict[str, Any], folder: Path, first: Tensors, second: Tensors
) -> None:
    """And written again in place; what does not fit changes nothing."""
    with LLM(str(folder), **ENGINE, **flags) as llm, SharedWeights() as shared:

        def update(key: str, **more: Any) -> None:
            llm.collective_rpc("update_weights", kwargs={"path": shared.path, "key": key, **more})

        own = answer(llm)[1]
        old_key = shared.write(second.items())
        inode = Path(shared.path).stat().st_ino
        update(old_key)
        cached, new = answer(llm)
        assert cached == 0 and new != own
        key = shared.write(first.items())
        assert Path(shared.path).stat().st_ino == inode
        with pytest.raises(RequestError, match="no weights with this key"):
            update(old_key)
        assert answer(llm) == (32, new)
        update(key)
        assert answer(llm) == (0, own)
        name = "model.layers.0.mlp.up_proj.weight"
        for wrong, reason in (
            ({k: v for k, v in second.items() if k != name}, "1 missing"),
            ({**second, name: second[name][1:].contiguous()}, "misfitting"),
            ({**second, "more": second[name]}, "unexpected"),
            ({**second, name: second[name] * float("nan")}, "not numbers"),
        ):
            with pytest.raises(RequestError, match=reason):
                update(shared.write(wrong.items()))
            assert answer(llm) == (32, own)
        for _ in range(2):  # read, then read again where it is mapped
            update(shared.write(second.items()))
            assert answer(llm) == (0, new)
            ill = {**second, name: second[name] * float("nan")}
            with pytest.raises(RequestError, match="not numbers"):
                update(shared.write(ill.items()))
            assert answer(llm) == (32, new)
            update(shared.write(first.items()))
            assert answer(llm) == (0, own)
        update(shared.write(second.items()))
        with pytest.raises(RequestError, match="key of a checkpoint"):
            llm.collective_rpc("update_weights", kwargs={"path": str(folder), "key": key})
        assert answer(llm) == (0, new)
        llm.collective_rpc("update_weights", kwargs={"path": str(folder)})
        assert answer(llm) == (0, own)
    assert not Path(shared.path).exists()


def test_a_trainer_in_another_thread_sends_to_an_engine_in_python(
    folder: Path, second: Tensors
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting: dict[str, Any] = {"address": "127.0.0.1", "port": port, "world_size": 2, "name": "g"}
    meeting["timeout_s"] = 5.0

    def train() -> TransferGroup:
        group = host(Meeting(**meeting))
        for tensor in second.values():
            group.broadcast(tensor)
        return group

    with LLM(str(folder), **ENGINE) as llm, ThreadPoolExecutor(1) as pool:
        own = answer(llm)[1]
        trainer = pool.submit(train)
        llm.collective_rpc("join_weight_group", kwargs=meeting)
        assert llm.collective_rpc("weight_groups") == [{"g": 1}]
        sent = announcement(second, name="g", folder=new_folder(0))
        (received,) = llm.collective_rpc("receive_weights", kwargs=sent)
        llm.collective_rpc("update_weights", kwargs={"path": received})
        cached, new = answer(llm)
        assert cached == 0 and new != own
        sent = announcement({"a": torch.zeros(4)}, name="g", folder=new_folder(0))
        with pytest.raises(RequestError, match="not all weights were received") as refused:
            llm.collective_rpc("receive_weights", kwargs=sent)  # which the trainer does not send
        assert refused.value.status == 504 and llm.collective_rpc("weight_groups") == [{}]
        assert answer(llm) == (32, new)
        trainer.result().close()


def torch_group(url: str, world_size: int, name: str) -> Any:
    """Return a trainer's group as those make it which use torch's functions alone."""
    from torch.distributed import distributed_c10d as c10d

    port = 20000 + os.getpid() % 20000
    meeting = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1}
    more = {"world_size": world_size, "group_name": name, "backend": "gloo"}
    joins = threading.Thread(
        target=httpx.post, args=(f"{url}/init_weights_update_group",),
        kwargs={"json": meeting | more, "timeout": 60},
    )  # fmt: skip
    joins.start()
    limit = timedelta(seconds=60)
    store, rank, size = next(
        dist.rendezvous(f"tcp://127.0.0.1:{port}", 0, world_size, timeout=limit)
    )
    group, _ = c10d._new_process_group_helper(
        size, rank, [], c10d.Backend("gloo"), dist.PrefixStore(name, store),
        group_name=name, timeout=limit,
    )  # fmt: skip
    joins.join(60)
    return group


def broadcast(group: Any, tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        group.broadcast([tensor], options).wait()


def announcement(tensors: Tensors, **more: Any) -> dict[str, Any]:
    return {
        "names": list(tensors),
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
        **more,
    }


def sent_folders() -> list[Path]:
    return list(MEMORY.glob(f"{PREFIX}*"))


def test_all_ranks_receive_from_a_trainers_group(
    folder: Path, first: Tensors, second: Tensors
) -> None:
    """Two engines of two ranks each, behind two API processes, and a request that goes on."""
    flags = ("--enable-dev-endpoints", "--kv-cache-memory-bytes", "4m", "--cpu-cores", "nobind",
             "--api-server-count", "2", "--data-parallel-size", "2", "--port", "0",
             "--tensor-parallel-size", "2", "--data-parallel-router", "round_robin")  # fmt: skip
    before = set(sent_folders())
    with ServerProcess(str(folder), *flags) as server, server.wait_ready().client() as client:

        def complete(max_tokens: int = 12) -> tuple[int, ...]:
            body = {"prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0}
            asked = body | {"ignore_eos": True, "return_token_ids": True}
            return tuple(
                client.post("/v1/completions", json=asked).json()["choices"][0]["token_ids"]
            )

        own = complete()
        assert client.get("/get_world_size").json() == {"world_size": 4}
        small = {"master_address": "127.0.0.1", "master_port": 1, "world_size": 4}
        refused = client.post("/init_weights_update_group", json=small)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "world_size")
        with TrainerGroup(server.url) as group:
            running = threading.Thread(target=lambda: long.append(complete(200)))
            long: list[tuple[int, ...]] = []
            running.start()
            group.send(second.items(), version="v2")
            running.join(60)
            assert len(long[0]) == 200
            new = {complete() for _ in range(4)}
            assert len(new) == 1 and own not in new
            with pytest.raises(ServerError, match="1 missing"):
                group.send([*second.items()][1:], version="v3")
            assert complete() in new
            server.engine().kill()
            assert {complete() for _ in range(4)} == new  # one engine has read them again
            until_s = time.monotonic() + 60
            while client.get("/get_world_size").json()["world_size"] < 4:
                assert time.monotonic() < until_s
                time.sleep(0.1)
            with pytest.raises(ServerError, match="not every rank"):
                group.send(first.items(), version="v3")
        group_of_torch = torch_group(server.url, 5, "by-torch")
        halves = dict([*first.items()][:5]), dict([*first.items()][5:])
        for half, is_last in zip(halves, (False, True), strict=True):
            body = announcement(half, group_name="by-torch", flush_cache=is_last)
            sending = threading.Thread(target=broadcast, args=(group_of_torch, half.values()))
            sending.start()
            done = client.post("/update_weights_from_distributed", json=body)
            sending.join(60)
            assert done.json()["success"], done.text
            assert complete() in ({own} if is_last else new)
        assert len(set(sent_folders()) - before) == 1  # those of the weights in use
        with SharedWeights() as shared:
            asked = {"shared_memory": shared.name, "key": shared.write(second.items())}
            done = client.post("/update_weights", json=asked | {"weights_version": "v5"})
            assert done.json() == {"path": shared.path, "weights_version": "v5"}
            assert complete() in new
        version = client.get("/v1/models").json()["data"][0]["weights_version"]
        assert re.fullmatch("v5|[a-z0-9_]{8}", version)
    assert set(sent_folders()) <= before
