"""Weights are replaced while an engine runs: it answers as one that was started with them."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM, LoRARequest, SamplingParams
from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import ExpertBalanceSpec
from dovetail_plugins.device_workers.new_weights import verify_replaceable
from dovetail_plugins.packed_weights import entry_file, loading
from dovetail_plugins.packed_weights.folder import cache_folder, entries
from dovetail_testing.tiny.models import write_tiny_checkpoint
from dovetail_testing.tiny.transformer import tiny_run
from support.gguf_files import write_gguf
from support.inside import engine_of, runner_of
from support.server_process import ServerProcess
from support.tiny_adapters import write_adapter

pytestmark = pytest.mark.e2e

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = [list(range(5, 45)), list(range(9, 30)), [7, 8, 9]]
HEADER = "x-dovetail-weights-version"
SIZES: dict[str, Any] = {"tie_word_embeddings": True, "max_position_embeddings": 1024}
ENGINE: dict[str, Any] = {
    "device": "cpu",
    "use_tqdm_on_load": False,
    "kv_cache_memory_bytes": 4 << 20,
    "block_size": 16,
    "max_model_len": 256,
}
Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def copy_of(folder: Path, name: str, change: Change) -> Path:
    """Return a checkpoint next to another, with changed tensors."""
    made = folder.with_name(name)
    shutil.copytree(folder, made)
    file = made / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return made


def turned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of the same values in another order, as another seed has them."""
    return {name: tensor.flip(0).contiguous() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "a"
    return write_tiny_checkpoint(folder, "Qwen3ForCausalLM", **SIZES)


@pytest.fixture(scope="module")
def second(first: Path) -> Path:
    return copy_of(first, "b", turned)


def answers(llm: LLM, prompts: Sequence[Any] = PROMPTS, **more: Any) -> list[tuple[int, ...]]:
    results = llm.generate(list(prompts), GREEDY, use_tqdm=False, **more)
    return [result.outputs[0].token_ids for result in results]


def fresh(folder: Path, prompts: Sequence[Any] = PROMPTS, **flags: Any) -> list[tuple[int, ...]]:
    """Return the answers of an engine that was started with a checkpoint."""
    with LLM(str(folder), **{**ENGINE, **flags}) as llm:
        return answers(llm, prompts)


def update(llm: LLM, folder: Path, **more: Any) -> list[Any]:
    return llm.collective_rpc("update_weights", kwargs={"path": str(folder), **more})


@pytest.mark.parametrize(
    "flags",
    [{}, {"quantization": "int8"}, {"tensor_parallel_size": 2}, {"load_format": "dummy"}],
    ids=["plain", "int8", "two-ranks", "dummy"],
)
def test_new_weights_answer_as_a_fresh_start_does(
    flags: dict[str, Any], first: Path, second: Path
) -> None:
    """To and fro, with prefixes cached before: none of them is found after."""
    of_files = {name: value for name, value in flags.items() if name != "load_format"}
    wanted = {folder: fresh(folder, **of_files) for folder in (first, second)}
    assert wanted[first] != wanted[second]
    with LLM(str(first), **{**ENGINE, **flags}) as llm:
        answers(llm)
        for version, folder in enumerate((second, first, first)):
            done = update(llm, folder, version=str(version))
            assert done == [{"path": str(folder), "version": str(version)}] * len(done)
            found = llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False)[0]
            assert (found.num_cached_tokens, found.outputs[0].token_ids) == (0, wanted[folder][0])
            assert answers(llm) == wanted[folder]
            assert llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False)[0].num_cached_tokens == 32


def test_blocks_of_a_request_that_ran_over_the_change_are_not_found(
    first: Path, second: Path
) -> None:
    """Also none that it fills afterwards, although its prompt's are computed anew by others."""
    prompts = [list(range(5, 45)), list(range(50, 60))]  # one fills blocks, one has none full yet
    with LLM(str(first), **ENGINE) as llm:
        engine = engine_of(llm)
        long = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        keys = [engine.submit(engine.prepare(prompt, long)) for prompt in prompts]
        results: dict[int, Any] = {}

        def step() -> None:
            results.update(engine.step().outputs)

        for _ in range(4):
            step()
        assert not results
        update(llm, second)
        while engine.has_work:
            step()
        said = [list(results[key].deltas[0].token_ids) for key in keys]
        assert [len(one) for one in said] == [60, 60]
        follow = [prompt + own + [3] for prompt, own in zip(prompts, said, strict=True)]
        wanted = fresh(second, [*prompts, *follow])
        assert answers(llm, prompts) == wanted[:2]  # blocks that the others' would follow
        found = llm.generate(follow, GREEDY, use_tqdm=False)
        assert [one.num_cached_tokens for one in found] == [32, 0]
        assert [one.outputs[0].token_ids for one in found] == wanted[2:]
        aborted = engine.submit(engine.prepare(prompts[0], long))
        step()
        update(llm, first, running="abort")
        while engine.has_work:
            step()
        assert results[aborted].deltas[0].finish_reason == "abort"


def without(name: str) -> Change:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if name not in key}


def with_nan(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = next(name for name in tensors if "down_proj" in name)
    tensors[name][1, 2] = float("nan")
    return tensors


def test_a_checkpoint_that_does_not_fit_changes_nothing(first: Path, second: Path) -> None:
    lacking = copy_of(first, "lacking", without("layers.0.mlp.up_proj"))
    ill = copy_of(first, "ill", with_nan)
    cut = copy_of(first, "cut", turned)
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[: len(whole) * 2 // 3])
    other = copy_of(first, "other", turned)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    wider = write_tiny_checkpoint(
        first.with_name("wider"), "Qwen3ForCausalLM", **SIZES | {"intermediate_size": 96}
    )
    shutil.copy(first / "config.json", wider / "config.json")
    wrong = {
        first.with_name("none"): "has no weights",
        lacking: "1 missing: ",
        ill: "not numbers",
        cut: "model.safetensors",
        other: "rms_norm_eps",
        wider: "misfitting",
    }
    for flags in ({}, {"tensor_parallel_size": 2}):
        with LLM(str(first), **ENGINE, **flags) as llm:
            before = answers(llm)
            for folder, reason in wrong.items():
                with pytest.raises(RequestError) as refused:
                    update(llm, folder)
                assert reason in f"{refused.value.where} {refused.value}", refused.value
                assert answers(llm) == before
            assert llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False)[0].num_cached_tokens == 32
            with pytest.raises(RequestError, match="recompute"):
                update(llm, second, running="recompute")
            update(llm, second)
            assert answers(llm) != before
    with LLM(str(first), **ENGINE) as llm:  # what was read by ranks is dropped
        places = [tensor.data_ptr() for tensor in runner_of(llm).weights()]
        update(llm, second)
        assert places == [tensor.data_ptr() for tensor in runner_of(llm).weights()]


def test_adapters_stay_and_sleep_reads_the_new_weights(
    first: Path, second: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(first)
    adapter = LoRARequest("l", 1, str(write_adapter(tmp_path / "l", model, seed=3)))
    flags = {**ENGINE, "enable_lora": True, "enable_sleep_mode": True}
    with LLM(str(second), **flags) as llm:
        plain, wanted = answers(llm), answers(llm, lora_request=adapter)
        assert plain != wanted
    with LLM(str(first), **flags) as llm:
        answers(llm, lora_request=adapter)
        update(llm, second)
        assert (answers(llm), answers(llm, lora_request=adapter)) == (plain, wanted)
        llm.sleep(2)
        with pytest.raises(RequestError, match="asleep"):
            update(llm, first)
        llm.wake_up()
        assert (answers(llm), answers(llm, lora_request=adapter)) == (plain, wanted)


def test_the_cache_of_packed_weights_stays_as_it_is(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GGUF files, whose packed weights are written in the background and mapped by a later start:
    an update right after the start changes nothing there. What is read from disk stays so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "LEAST_BYTES", 0)
    source = write_tiny_checkpoint(tmp_path / "a", "Qwen3ForCausalLM", **SIZES, hidden_size=256)
    files = [tmp_path / "first.gguf", tmp_path / "second.gguf"]
    for folder, file in zip((source, copy_of(source, "b", turned)), files, strict=True):
        write_gguf(folder, file, lambda name: "F32" if "norm" in name else "Q4_K")
    mine, its = (fresh(file, weight_cache=False) for file in files)
    assert mine != its
    for _ in range(2):  # packs, then maps what was packed
        with LLM(str(files[0]), **ENGINE) as llm:
            assert answers(llm) == mine
            update(llm, files[1])
            assert answers(llm) == its
        (entry,) = entries(cache_folder())
        assert entry_file.check(entry.path, entry.key) is None
    monkeypatch.setattr(loading, "available_bytes", lambda: 1)
    with LLM(str(files[0]), **ENGINE) as llm:
        with pytest.raises(RequestError, match="start the server again"):
            update(llm, files[1])
        assert answers(llm) == mine


@pytest.mark.parametrize(
    "change", [{"offload_bytes": 1}, {"expert_balance": ExpertBalanceSpec()}, {"kv_steps": (1, 1)}]
)
def test_weights_that_are_not_replaced(change: dict[str, Any]) -> None:
    verify_replaceable(tiny_run())
    with pytest.raises(RequestError, match=r"not replaced: .*\(--") as refused:
        verify_replaceable(msgspec.structs.replace(tiny_run(), **change))
    assert refused.value.status == 409


def lines_of(response: httpx.Response) -> Iterator[str]:
    return (line for line in response.iter_lines() if line.startswith("data: "))


def test_a_server_goes_on_and_starts_again_with_the_new_weights(first: Path, second: Path) -> None:
    flags = ("--enable-dev-endpoints", "--kv-cache-memory-bytes", "4m", "--max-model-len", "1024",
             "--api-server-count", "2", "--port", "0")  # fmt: skip
    with ServerProcess(str(first), *flags) as server, server.wait_ready().client() as client:
        body = {"prompt": PROMPTS[0], "max_tokens": 12, "temperature": 0, "ignore_eos": True}

        def complete() -> tuple[str, str]:
            answer = client.post("/v1/completions", json={**body, "return_token_ids": True})
            return answer.headers[HEADER], answer.json()["choices"][0]["token_ids"]

        def shown() -> set[str]:
            """Return the versions that both API processes show."""
            cards = [httpx.get(f"{server.url}/v1/models").json()["data"][0] for _ in range(8)]
            return {card["weights_version"] for card in cards}

        def wait_for(version: str) -> None:
            until_s = time.monotonic() + 60
            while shown() != {version}:
                assert time.monotonic() < until_s
                time.sleep(0.1)

        old, new = (list(fresh(folder, PROMPTS[:1])[0]) for folder in (first, second))
        assert complete() == ("default", old)
        pieces: list[str] = []
        has_begun = threading.Event()

        def read() -> None:
            more = {"stream": True, "max_tokens": 900}
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body | more) as stream:
                for number, line in zip(itertools.count(), lines_of(stream), strict=False):
                    pieces.append(line)
                    if number == 3:
                        has_begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert has_begun.wait(30)
        answer = client.post("/update_weights", json={"path": str(second), "weights_version": "v2"})
        assert answer.json() == {"path": str(second), "weights_version": "v2"}
        during = len(pieces)
        reader.join(60)
        assert pieces[-1] == "data: [DONE]" and len(pieces) > during
        wait_for("v2")
        assert complete() == ("v2", new)
        refused = client.post("/update_weights", json={"path": str(first / "no")})
        assert (refused.status_code, complete()) == (400, ("v2", new))
        server.engine().kill()
        assert complete() == ("v2", new)
        assert client.get("/server_info").json()["weights"]["path"] == str(second)
        sglang = {"model_path": str(first), "weight_version": "v3", "abort_all_requests": True}
        assert client.post("/update_weights_from_disk", json=sglang).json()["success"] is True
        wait_for("v3")
        assert complete() == ("v3", old)


class Streamed:
    """An answer that is being read, as the ids of its tokens."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self.ids: list[int] = []
        self.versions: set[str] = set()
        self.fault = ""
        self._thread = threading.Thread(target=self._read, args=(url, body))
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any]) -> None:
        asked = {**body, "stream": True, "return_token_ids": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=60) as stream:
            self.versions.add(stream.headers[HEADER])
            for line in lines_of(stream):
                if line != "data: [DONE]":
                    event = json.loads(line[6:])
                    self.ids += event["choices"][0]["token_ids"] if "choices" in event else []
                    self.fault = event.get("error", {}).get("message", "")

    def begun(self) -> Streamed:
        until_s = time.monotonic() + 30
        while len(self.ids) < 3:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        return self

    def whole(self) -> list[int]:
        self._thread.join(60)
        return self.ids


@pytest.mark.parametrize("clear_cache", [False, True])
def test_a_pause_changes_no_answer_and_weights_can_be_replaced_in_it(
    first: Path, second: Path, clear_cache: bool
) -> None:
    """With two API processes and two engines; requests that come meanwhile wait, and get the new
    weights. Those that run keep their KV cache, or are computed again by the new weights."""
    flags = ("--enable-dev-endpoints", "--kv-cache-memory-bytes", "4m", "--max-model-len", "1024",
             "--api-server-count", "2", "--data-parallel-size", "2", "--cpu-cores", "nobind",
             "--data-parallel-router", "round_robin", "--port", "0")  # fmt: skip
    with ServerProcess(str(first), *flags) as server, server.wait_ready().client() as client:
        body = {"temperature": 0, "ignore_eos": True, "max_tokens": 400}
        bodies = [{**body, "prompt": prompt} for prompt in PROMPTS]
        long = {**bodies[0], "max_tokens": 900}
        wanted = Streamed(server.url, long).whole()
        pause = f"/pause?mode=keep&clear_cache={str(clear_cache).lower()}"
        for folder in (first, second):
            old = Streamed(server.url, long).begun()
            assert client.post(pause).json() == {"status": "paused"}
            new = [Streamed(server.url, one) for one in bodies]
            at_rest = len(old.ids)
            time.sleep(0.3)
            assert len(old.ids) <= at_rest + 2  # what was on its way
            assert client.get("/is_paused").json() == {"is_paused": True}
            assert client.get("/health").status_code == 200
            assert client.post("/update_weights", json={"path": str(folder)}).status_code == 200
            assert not any(one.ids for one in new)
            client.post("/resume")
            answers = [tuple(one.whole()[:12]) for one in new]
            assert answers == fresh(folder)
            if folder == first:
                assert old.whole() == wanted
        limited = Streamed(server.url, long).begun()
        assert client.post("/pause?mode=wait&timeout=0").json() == {"status": "paused"}
        assert 3 <= len(limited.whole()) < 900 and "abort" in limited.fault, limited.fault
        client.post("/resume")
        known = old.whole()
        at_rest = max(n for n in range(len(known)) if known[:n] == wanted[:n])
        after = [*PROMPTS[0], *known[:at_rest]]
        with LLM(str(second), **{**ENGINE, "max_model_len": 1024}) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
            recomputed = llm.generate([after], params, use_tqdm=False)[0].outputs[0].token_ids
        said = tuple(known[at_rest : at_rest + 40])
        assert (said == recomputed[: len(said)]) == clear_cache
