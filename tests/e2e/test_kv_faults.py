"""A thousand random faults of stores and peers (make test-full; else a sample), drawn from a seed:
never a wrong token, never a request that hangs; what can be had again afterwards is."""

from __future__ import annotations

import errno
import random
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.interfaces.data.sealed_block import seal
from dovetail_plugins.kv_connectors._block_folder import BlockFolder
from dovetail_plugins.kv_connectors._peer_server import HostBlocks, PeerServer
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import block_store_of, core_of, host_blocks_of, runner_of, stored_in
from support.samples import sample_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SEED = 24
FAULTS = {
    "offloading": sample_of(350, 40),
    "shared_storage": sample_of(350, 40),
    "p2p": sample_of(300, 40),
}
LIMIT_S = 20.0
ENGINE: dict[str, Any] = {
    "max_model_len": 128,
    "dtype": "float32",
    "block_size": 16,
    "use_tqdm_on_load": False,
    "num_gpu_blocks_override": 10,
}
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
LONG = [3 + (7 * i + i // 9) % 60 for i in range(110)]
PROMPTS = [LONG, LONG[:70], [*LONG[:50], 5, 6, 7], [9, 8, 7, *LONG[:60]], LONG[20:90]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM"))


@pytest.fixture(scope="module")
def wanted(model: str) -> list[Any]:
    with LLM(model=model, **ENGINE) as llm:
        return [answer(llm, prompt) for prompt in PROMPTS]


def answer(llm: LLM, prompt: list[int]) -> tuple[int, ...]:
    began_s = time.monotonic()
    (result,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert result.error is None, result.error
    assert time.monotonic() - began_s < LIMIT_S, "the request hung"
    return result.outputs[0].token_ids


def transfer(connector: str, extra: dict[str, Any], **keys: Any) -> dict[str, Any]:
    names = {"kv_connector": connector, "kv_role": "kv_both", "kv_load_timeout": 1.0}
    return {"kv_transfer_config": {**names, "kv_connector_extra_config": extra, **keys}}


def loaded(llm: LLM) -> int:
    return core_of(llm).cache.num_loaded_tokens


# Folders


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[..., Any]) -> Iterator[None]:
    """Within the block, a method of all folders is another."""
    with monkeypatch.context() as patch:
        patch.setattr(BlockFolder, name, call)
        yield


def full(self: BlockFolder, key: bytes, block: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken(self: BlockFolder, key: bytes) -> bytes:
    raise OSError(errno.EIO, "Input/output error")


def slow(wait_s: float) -> Callable[..., Any]:
    read = BlockFolder.read

    def wait(self: BlockFolder, key: bytes) -> bytes | None:
        time.sleep(wait_s)
        return read(self, key)

    return wait


def damage(file: Path, chance: random.Random) -> None:
    """Corrupt, tear, swap or lose a file, or make it that of another model or rank."""
    content = bytearray(file.read_bytes()) or bytearray(64)
    match chance.randrange(7):
        case 0:
            file.unlink()
        case 1:
            file.write_bytes(content[: chance.randrange(len(content))])
        case 2:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        case 3:
            file.write_bytes(bytes(len(content)))
        case 4:
            others = [other for other in file.parent.parent.rglob("*.0") if other != file]
            file.write_bytes(chance.choice(others).read_bytes() if others else b"")
        case 5:
            content += bytes(64)
            seal(content, bytes.fromhex(file.stem), 1)
            file.write_bytes(content)
        case 6:
            file.write_bytes(content + content)


@pytest.mark.parametrize("connector", ["offloading", "shared_storage"])
def test_folders(
    connector: str,
    model: str,
    wanted: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(SEED)
    extra = {"folder": str(tmp_path / "store")}
    extra |= {"host_bytes": 0} if connector == "offloading" else {}
    with LLM(model=model, **ENGINE, **transfer(connector, extra)) as llm:

        def ask() -> None:
            number = chance.randrange(len(PROMPTS))
            assert answer(llm, PROMPTS[number]) == wanted[number]

        for number in range(FAULTS[connector]):
            files = sorted((tmp_path / "store").rglob("*.0"))
            match number % 20 if number < 20 else chance.randrange(20):
                case 0:
                    shutil.rmtree(tmp_path / "store", ignore_errors=True)
                    is_in_the_way = chance.random() < 0.5
                    if is_in_the_way:
                        (tmp_path / "store").write_text("a file where a folder was")
                    ask()
                    if is_in_the_way:
                        (tmp_path / "store").unlink()
                case 1 | 2:
                    with failing(monkeypatch, "write", full):
                        ask()
                case 3 | 4:
                    with failing(monkeypatch, "read", broken):
                        ask()
                case 5:
                    with failing(monkeypatch, "read", slow(chance.choice((0.01, 0.4)))):
                        ask()
                case _:
                    for file in chance.sample(files, min(len(files), chance.randint(1, 4))):
                        with suppress(FileNotFoundError):  # dropped meanwhile
                            damage(file, chance)
                    ask()
        time.sleep(2)  # what was given up is over
        before = loaded(llm)
        for _ in range(2):
            for prompt, tokens in zip(PROMPTS, wanted, strict=True):
                assert answer(llm, prompt) == tokens
        assert loaded(llm) > before
        core_of(llm).check_idle()


# Peers


def spoil(blocks: HostBlocks, chance: random.Random) -> None:
    """Damage or lose some of the blocks that a peer has."""
    for key in chance.sample(sorted(stored_in(blocks)), min(len(stored_in(blocks)), 3)):
        content = bytearray(stored_in(blocks)[key])
        match chance.randrange(4):
            case 0:
                blocks.drop(key)
                continue
            case 1:
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            case 2:
                content = content[: chance.randrange(len(content))]
            case 3:
                content = bytearray(stored_in(blocks)[chance.choice(sorted(stored_in(blocks)))])
        stored_in(blocks)[key] = bytes(content)


class Dying(Exception):
    """Ends the thread that serves a peer's blocks, as a kill ends a process."""


def test_peers(model: str, wanted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda args: None)  # of those that are to die
    monkeypatch.setattr("dovetail_plugins.kv_connectors._peer_client.ASK_LIMIT_S", 0.5)
    monkeypatch.setattr("dovetail_plugins.kv_connectors._peer_client.LEFT_ALONE_S", 0.05)
    chance = random.Random(SEED)
    ports = {"kv_port": 10_000 + secrets.randbelow(550) * 40, "kv_parallel_size": 2}
    extra = {"host_bytes": 1 << 24}
    giving = transfer("p2p", extra, kv_rank=0, **ports)
    taking = transfer("p2p", {"host_bytes": 0}, kv_rank=1, **ports)
    with (
        LLM(model=model, **ENGINE, **giving) as one,
        LLM(model=model, **ENGINE, **taking) as other,
    ):
        store = block_store_of(runner_of(one))
        kept = dict[bytes, Any]()

        def refill() -> None:
            for prompt, tokens in zip(PROMPTS, wanted, strict=True):
                assert answer(one, prompt) == tokens
            core_of(one).step()
            time.sleep(0.1)
            kept.update(stored_in(host_blocks_of(store)))

        def ask() -> None:
            number = chance.randrange(len(PROMPTS))
            assert answer(other, PROMPTS[number]) == wanted[number]

        def serve_anew() -> None:
            old = store._server
            old.close()
            store._server = PeerServer(
                host_blocks_of(store), old._facts, old._place, old._secret, old._carrier
            )

        refill()
        for number in range(FAULTS["p2p"]):
            stored_in(host_blocks_of(store)).update(kept)
            match number % 12 if number < 12 else chance.randrange(12):
                case 0:  # killed while it hands blocks over
                    countdown = [chance.randrange(6)]

                    def die(key: bytes, left: list[int] = countdown) -> Any:
                        left[0] -= 1
                        if left[0] < 0:
                            raise Dying
                        return HostBlocks.get(host_blocks_of(store), key)

                    host_blocks_of(store).get = die
                    ask()
                    del host_blocks_of(store).get
                    serve_anew()
                case 1:  # gone, and back
                    store._server.close()
                    ask()
                    serve_anew()
                case 2:  # slow

                    def wait(key: bytes) -> Any:
                        time.sleep(0.03)
                        return HostBlocks.get(host_blocks_of(store), key)

                    host_blocks_of(store).get = wait
                    ask()
                    del host_blocks_of(store).get
                case _:
                    spoil(host_blocks_of(store), chance)
                    ask()
        stored_in(host_blocks_of(store)).update(kept)
        time.sleep(2)
        before = loaded(other)
        for prompt, tokens in zip(PROMPTS, wanted, strict=True):
            assert answer(other, prompt) == tokens
        assert loaded(other) > before
        core_of(other).check_idle()
