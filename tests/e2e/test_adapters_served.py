"""Adapters from the user's side, as whole servers and offline: each name answers as its adapter's
weights say, in every API process and every engine; they come, go and are found in a folder."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dovetail import LLM, LoRARequest, SamplingParams
from dovetail.cli.main import main
from dovetail.errors import RequestError
from dovetail_testing.checkpoints import code_running_pickle
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.server_process import ServerProcess
from support.tiny_adapters import merged, write_adapter

pytestmark = pytest.mark.e2e

PROMPT = list(range(40, 60))
NUM_TOKENS = 8
NAMES = ("one", "two", "late", "found")
SMALL = {"dtype": "float32", "kv_cache_memory_bytes": "2M", "max_num_seqs": 8}
Wanted = dict[str, list[int]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of a model and of its adapters; "found" lies where a resolver looks."""
    root = tmp_path_factory.mktemp("adapters")
    folder = write_tiny_checkpoint(root / "model", "LlamaForCausalLM")
    write_tiny_tokenizer(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = {"model": folder, "cache": root / "cache"}
    for seed, name in enumerate(NAMES):
        place = root / ("cache" if name == "found" else "given") / name
        found[name] = write_adapter(place, model, seed=seed, base="base")
    found["other"] = write_adapter(root / "cache" / "other", model, seed=9, base="another/base")
    found["nan"] = write_adapter(root / "given" / "nan", model, seed=9, broken=True)
    return found


@pytest.fixture(scope="module")
def wanted(places: dict[str, Path]) -> Wanted:
    """Return the tokens that transformers draws with each adapter merged, and without any."""
    model = transformers.AutoModelForCausalLM.from_pretrained(places["model"], dtype=torch.float32)
    drawn = {"base": _greedy(model)}
    drawn |= {name: _greedy(merged(model, places[name])) for name in NAMES}
    assert len({tuple(tokens) for tokens in drawn.values()}) == len(drawn)
    return drawn


def _greedy(model: Any) -> list[int]:
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def body_of(name: str, **fields: Any) -> dict[str, Any]:
    body = {"model": name, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    return body | {"ignore_eos": True, "return_token_ids": True} | fields


@pytest.fixture(scope="module")
def server(places: dict[str, Path]) -> Iterator[ServerProcess]:
    """Return a server with two API processes and two engines."""
    flags = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    with ServerProcess(
        *(str(places["model"]), "--served-model-name", "base", "--port", "0"),
        *(word.replace("_", "-") for word in flags),
        *("--api-server-count", "2", "--data-parallel-size", "2"),
        *("--enable-lora", "--max-loras", "2", "--max-cpu-loras", "4", "--max-lora-rank", "8"),
        *("--lora-modules", f"one={places['one']}", f"two={places['two']}"),
        *("--lora-resolver-cache-dir", str(places["cache"]), "--allow-runtime-lora-updating"),
    ) as made:
        yield made.wait_ready()


Post = Callable[[str, dict[str, Any]], httpx.Response]


@pytest.fixture(scope="module")
def post(server: ServerProcess) -> Post:
    """Return a function that posts over a connection of its own, which any process may take."""

    def sent(path: str, body: dict[str, Any]) -> httpx.Response:
        with server.client() as client:
            return client.post(path, json=body)

    return sent


def tokens_of(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def test_each_name_answers_as_its_adapter(post: Post, wanted: Wanted) -> None:
    for _ in range(2):
        for name in ("base", "one", "two"):
            answer = post("/v1/completions", body_of(name))
            assert tokens_of(answer) == wanted[name], name
            assert answer.json()["model"] == name


def test_together_they_answer_as_alone(post: Post, wanted: Wanted) -> None:
    names = ["base", "one", "two", "found"] * 6
    answers: dict[int, list[int]] = {}

    def ask(place: int) -> None:
        answers[place] = tokens_of(post("/v1/completions", body_of(names[place])))

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[place] for place in range(len(names))] == [wanted[name] for name in names]


def test_a_folder_of_adapters_answers_by_name(post: Post, wanted: Wanted) -> None:
    assert tokens_of(post("/v1/completions", body_of("found"))) == wanted["found"]
    for name in ("other", "../given/late", "absent"):
        refused = post("/v1/completions", body_of(name))
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_load_reload_unload_in_every_process(
    post: Post, server: ServerProcess, places: dict[str, Path], wanted: Wanted
) -> None:
    load = {"lora_name": "late", "lora_path": str(places["late"])}
    broken = post("/v1/load_lora_adapter", load | {"lora_path": str(places["nan"])})
    assert broken.status_code == 400
    assert all(word in broken.text for word in (str(places["nan"]), "q_proj", "not finite"))
    assert post("/v1/load_lora_adapter", load).status_code == 200
    for _ in range(6):
        assert tokens_of(post("/v1/completions", body_of("late"))) == wanted["late"]
    again = post("/v1/load_lora_adapter", load)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
    other = load | {"lora_path": str(places["two"]), "load_inplace": True}
    assert post("/v1/load_lora_adapter", other).status_code == 200
    assert {tuple(tokens_of(post("/v1/completions", body_of("late")))) for _ in range(4)} == {
        tuple(wanted["two"])
    }
    with server.client() as client:
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    assert (cards["late"]["root"], cards["late"]["parent"]) == (str(places["two"]), "base")
    assert post("/v1/unload_lora_adapter", {"lora_name": "late"}).status_code == 200
    assert {post("/v1/completions", body_of("late")).status_code for _ in range(6)} == {404}
    assert tokens_of(post("/v1/completions", body_of("one"))) == wanted["one"]


def wrong_base(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    wide = {
        name: torch.ones(4, 48) if "q_proj.lora_A" in name else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(wide, file)


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(code_running_pickle(folder / "trace"))


Broken = tuple[dict[str, Any], Callable[[Path], Any], int, tuple[str, ...]]
BROKEN: dict[str, Broken] = {
    "rank": ({"rank": 9}, lambda folder: None, 400, ("rank is 9", "--max-lora-rank 9", "_proj")),
    "base": ({}, wrong_base, 400, ("48 inputs", "trained for this model", "qkv_proj")),
    "nan": ({"broken": True}, lambda folder: None, 400, ("not finite", "q_proj: down")),
    "no weights": ({}, lambda folder: (folder / "adapter_model.safetensors").unlink(), 400,
                   ("adapter_model.safetensors",)),
    "no config": ({}, lambda folder: (folder / "adapter_config.json").unlink(), 404,
                  ("adapter_config.json",)),
    "pickle": ({}, pickled, 400, ("more than tensors", "adapter_model.bin")),
}  # fmt: skip
"""How an adapter is written and then spoiled, the status of its load, and what is said of it."""


@pytest.fixture(params=BROKEN)
def broken(
    request: pytest.FixtureRequest, places: dict[str, Path], tmp_path: Path
) -> tuple[Path, int, tuple[str, ...]]:
    written, spoil, status, words = BROKEN[request.param]
    model = transformers.AutoModelForCausalLM.from_pretrained(places["model"], dtype=torch.float32)
    folder = write_adapter(tmp_path / "spoilt", model, seed=1, **written)
    spoil(folder)
    return folder, status, words


def test_what_is_wrong_is_told_over_http(
    post: Post, wanted: Wanted, broken: tuple[Path, int, tuple[str, ...]]
) -> None:
    folder, status, words = broken
    answer = post("/v1/load_lora_adapter", {"lora_name": "spoilt", "lora_path": str(folder)})
    told = answer.json()["error"]["message"]
    assert answer.status_code == status, told
    assert [word for word in (str(folder), *words) if word not in told] == []
    assert post("/v1/completions", body_of("spoilt")).status_code == 404
    assert tokens_of(post("/v1/completions", body_of("one"))) == wanted["one"]
    assert not (folder / "trace").exists()


@pytest.mark.usefixtures("own_log")
def test_what_is_wrong_is_told_at_the_start(
    places: dict[str, Path],
    broken: tuple[Path, int, tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _, words = broken
    flags = "--enable-lora --max-lora-rank 8 --dtype float32 --kv-cache-memory-bytes 2M --port 0"
    flags += f" --lora-modules spoilt={folder} --disable-frontend-multiprocessing"
    assert main(["serve", str(places["model"]), *flags.split()]) == 2
    told = capsys.readouterr().err
    assert [word for word in (str(folder), "spoilt", *words) if word not in told] == []
    assert not (folder / "trace").exists()


def test_metrics_name_them(server: ServerProcess, post: Post) -> None:
    assert post("/v1/completions", body_of("one")).status_code == 200
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    shown = [line for line in lines if line.startswith("vllm:lora_requests_info{")]
    assert any('running_lora_adapters="one"' in line for line in shown)
    assert any('max_lora="2"' in line for line in shown)


@pytest.fixture(scope="module")
def llm(places: dict[str, Path]) -> Iterator[LLM]:
    small = SMALL | {"use_tqdm_on_load": False, "enable_lora": True, "max_loras": 2}
    with LLM(str(places["model"]), served_model_name=["base"], **small) as made:
        yield made


DRAWN = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)


def test_engines_that_were_started_again_serve_what_was_served(
    server: ServerProcess, post: Post, places: dict[str, Path], wanted: Wanted
) -> None:
    """Both die at once: loaded ones come back, and what was unloaded since the start does not."""
    post("/v1/load_lora_adapter", {"lora_name": "late", "lora_path": str(places["late"])})
    assert tokens_of(post("/v1/completions", body_of("late"))) == wanted["late"]
    assert post("/v1/unload_lora_adapter", {"lora_name": "one"}).status_code == 200
    time.sleep(1.5)  # their owner asks every second
    for child in server.descendants():
        if "dovetail.engine.process" in child.cmdline():
            child.kill()
    with server.client() as client:
        for name in ("base", "two", "late"):
            for _ in range(4):
                assert tokens_of(post("/v1/completions", body_of(name))) == wanted[name], name
        deadline_s = time.monotonic() + 60
        while client.get("/health").json().get("status") != "ok":
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        names = {one["id"] for one in client.get("/v1/models").json()["data"]}
    assert {"base", "two", "late"} <= names and "one" not in names
    assert post("/v1/completions", body_of("one")).status_code == 404
    assert tokens_of(post("/v1/completions", body_of("late"))) == wanted["late"]


def test_offline_as_users_write_it(llm: LLM, places: dict[str, Path], wanted: Wanted) -> None:
    one = LoRARequest("one", 1, str(places["one"]))
    two = LoRARequest("two", 2, lora_path=str(places["two"]))
    each = [one, None, two, "one"]
    results = llm.generate([PROMPT] * 4, DRAWN, use_tqdm=False, lora_request=each)
    drawn = [list(result.outputs[0].token_ids) for result in results]
    assert drawn == [wanted[name] for name in ("one", "base", "two", "one")]
    (alone,) = llm.generate([PROMPT], DRAWN, use_tqdm=False, lora_request=two)
    assert list(alone.outputs[0].token_ids) == wanted["two"]
    assert [source.name for source in llm.adapters()] == ["one", "two"]
    plain, tuned = (
        llm.chat([{"role": "user", "content": "hi"}], DRAWN, False, lora)[0].outputs[0].token_ids
        for lora in (None, one)
    )
    assert plain != tuned


def test_offline_loading(llm: LLM, places: dict[str, Path], wanted: Wanted) -> None:
    llm.load_adapter("late", str(places["late"]))
    (answer,) = llm.generate([PROMPT], DRAWN, use_tqdm=False, lora_request="late")
    assert list(answer.outputs[0].token_ids) == wanted["late"]
    with pytest.raises(RequestError, match="loaded already"):
        llm.load_adapter("late", str(places["one"]))
    llm.load_adapter("late", str(places["one"]), load_inplace=True)
    (answer,) = llm.generate([PROMPT], DRAWN, use_tqdm=False, lora_request="late")
    assert list(answer.outputs[0].token_ids) == wanted["one"]
    llm.unload_adapter("late")
    for asked in ("late", LoRARequest("late", 1)):
        with pytest.raises(RequestError, match="not loaded"):
            llm.generate([PROMPT], DRAWN, use_tqdm=False, lora_request=asked)
    with pytest.raises(RequestError, match="not finite"):
        llm.load_adapter("nan", str(places["nan"]))
    with pytest.raises(RequestError, match="name of the model"):
        llm.load_adapter("base", str(places["one"]))
    with pytest.raises(ValueError, match="2 prompts, but 1 adapters"):
        llm.generate([PROMPT] * 2, DRAWN, use_tqdm=False, lora_request=["one"])


def test_offline_vectors(places: dict[str, Path]) -> None:
    small = SMALL | {"use_tqdm_on_load": False, "enable_lora": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(places["model"], dtype=torch.float32)
    with LLM(str(places["model"]), runner="pooling", **small) as llm:
        one = LoRARequest("one", 1, str(places["one"]))
        told = llm.embed([PROMPT, PROMPT], False, lora_request=[None, one])
        (whole,) = llm.encode([PROMPT], use_tqdm=False, lora_request=one)
    for result, by in zip(told, (model, merged(model, places["one"])), strict=True):
        with torch.inference_mode():
            state = by.model(torch.tensor([PROMPT])).last_hidden_state[0, -1]
        vector = (state / state.norm()).numpy()
        np.testing.assert_allclose(np.array(result.outputs.embedding), vector, atol=1e-5)
    np.testing.assert_allclose(whole.outputs.data, told[1].outputs.embedding, atol=1e-6)


@pytest.fixture
def own_log() -> Iterator[None]:
    """Take back what a command in this process does to its log."""
    logger = logging.getLogger("dovetail")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.mark.usefixtures("own_log")
def test_lines_of_a_batch_name_adapters(
    places: dict[str, Path], wanted: Wanted, tmp_path: Path
) -> None:
    names = ["one", "base", "two", "absent", "one"]
    lines = (
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body_of(name)}
        for i, name in enumerate(names)
    )
    asked, told = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = f"-i {asked} -o {told} --model {places['model']} --served-model-name base"
    words += " --enable-lora --max-loras 2 --dtype float32 --kv-cache-memory-bytes 2M"
    words += f" --lora-modules one={places['one']} two={places['two']}"
    status = main(["run-batch", *words.split(), "--disable-frontend-multiprocessing"])
    answers = map(json.loads, told.read_text().splitlines())
    found = {answer["custom_id"]: answer for answer in answers}
    assert status == 1  # one line failed
    for i, name in enumerate(names):
        response = found[str(i)]["response"]
        if name == "absent":
            assert response["status_code"] == 404
        else:
            choice = response["body"]["choices"][0]
            assert choice["token_ids"] == wanted[name], name
