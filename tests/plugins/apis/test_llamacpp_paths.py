"""The other paths of llama.cpp's server: infill, tokens, templates, slots, vectors, rankings."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from dovetail.interfaces.data.pooling_params import CLASSIFY, TOKEN_EMBED
from dovetail_plugins.apis._infill import LAYOUTS, InfillTokens
from dovetail_testing.fakes.async_engine import (
    FakeAsyncEngine,
    FakeFacts,
    FakeTokenizer,
    Script,
    fake_pooling,
    fake_spec,
)
from support.infill_tokenizer import WithMarkers
from support.serving import USER, app_for, chat, client_of, events_of, send, with_samplers

FILES = [{"filename": "a.py", "text": "A = 1"}, {"text": "B"}]
QWEN = LAYOUTS[0]


def infilling(
    layout: InfillTokens = QWEN, bos: int | None = None, **spec: Any
) -> tuple[FastAPI, FakeAsyncEngine, WithMarkers]:
    engine = with_samplers(**spec)
    tokenizer = WithMarkers(layout, bos)
    engine.tokenizer = tokenizer
    app, _ = app_for(engine=engine)
    return app, engine, tokenizer


def fill(app: FastAPI, **fields: Any) -> httpx.Response:
    given = {"input_prefix": "pre", "input_suffix": "suf"} | fields
    return send(app, "POST", "/infill", given)


def read_by(engine: FakeAsyncEngine, tokenizer: WithMarkers) -> str:
    return "".join(tokenizer.tokens(engine.asked[-1][2]["prompt"]))


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.prefix)
def test_a_middle_is_asked_for_in_the_models_tokens(layout: InfillTokens, bos: int | None) -> None:
    app, engine, tokenizer = infilling(layout, bos)
    answer = fill(app, input_extra=FILES, prompt="mid", n_predict=9)
    assert answer.status_code == 200, answer.text
    parts = [f"{layout.prefix}pre", f"{layout.suffix}suf"]
    middle = "".join(reversed(parts) if layout.is_suffix_first else parts) + f"{layout.middle}mid"
    if layout.repository:
        start, file = layout.repository
        context = f"{start}myproject\n{file}a.py\nA = 1\n{file}tmp\nB\n{file}filename\n"
    else:
        context = "A = 1B"
    head = "" if bos is None else "\x01"
    assert read_by(engine, tokenizer) == f"{head}{context}{middle}"
    assert engine.asked[-1][1].stop_token_ids == tuple(map(tokenizer.id_of, layout.ends))
    fill(app, ignore_eos=True)
    assert engine.asked[-1][1].stop_token_ids == ()


def test_what_editors_send() -> None:
    """The fields of llama.vim, with the sampler of its own, which has no effect here."""
    app, engine, _ = infilling()
    answer = fill(
        app, prompt="", n_predict=128, n_indent=4, top_k=40, top_p=0.99, stream=False,
        samplers=["top_k", "top_p", "infill"], cache_prompt=True, t_max_prompt_ms=500,
        t_max_predict_ms=1000, stop=["\n\n"], id_slot=0, input_extra=FILES,
        response_fields=["content", "timings/prompt_n", "truncated", "tokens_cached"],
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    params = engine.asked[-1][1]
    assert (params.top_k, params.top_p, params.min_p, params.temperature) == (40, 0.99, 0, 1)
    ignored = answer.headers["x-dovetail-ignored-fields"].split(", ")
    assert set(ignored) == {"t_max_prompt_ms", "samplers.infill"}
    assert set(answer.json()) == {"content", "timings/prompt_n", "truncated", "tokens_cached"}
    warm_up = fill(app, n_predict=0, input_prefix="", input_suffix="", response_fields=["content"])
    assert warm_up.json() == {"content": ""}


@pytest.mark.parametrize(
    ("num_before", "num_after", "kept"),
    [(500, 500, (0, 36, 12)), (10, 500, (0, 10, 38)), (500, 5, (0, 43, 5)), (8, 9, (31, 8, 9))],
)
def test_what_is_too_long_loses_its_far_ends(
    num_before: int, num_after: int, kept: tuple[int, int, int]
) -> None:
    layout = LAYOUTS[2]
    app, engine, tokenizer = infilling(layout, max_model_tokens=71)
    before, after = "".join(map(chr, range(1000, 1000 + num_before))), "s" * num_after
    extra = [{"text": "".join(map(chr, range(300, 400)))}]
    answer = fill(app, input_prefix=before, input_suffix=after, input_extra=extra, n_predict=20)
    assert answer.status_code == 200, answer.text
    read = read_by(engine, tokenizer)
    context, rest = read.split(layout.prefix)
    first, second = rest.removesuffix(layout.middle).split(layout.suffix)
    assert (len(context), len(first), len(second)) == kept
    assert before.endswith(first) and after.startswith(second)
    assert extra[0]["text"].endswith(context)


def test_infilling_that_cannot_be_done() -> None:
    app, _ = app_for()
    error = fill(app).json()["error"]
    assert error["code"] == 400 and error["message"].startswith("input_suffix: ")
    app, _, _ = infilling()
    for name in ("input_prefix", "input_suffix"):
        answer = send(app, "POST", "/infill", {name: "a"})
        assert answer.status_code == 400 and answer.json()["error"]["type"]
    small, _, _ = infilling(max_model_tokens=20)
    assert "n_predict" in fill(small, n_predict=20).json()["error"]["message"]


class WithBytes(FakeTokenizer):
    """Characters; those beyond ASCII as the bytes of their UTF-8."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1, *text.encode()] if add_special_tokens else [*text.encode()]

    def bytes_of(self, token_ids: Any) -> list[bytes]:
        return [bytes([token_id]) for token_id in token_ids]


def tokens_of(app: FastAPI, **fields: Any) -> Any:
    answer = send(app, "POST", "/tokenize", fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_one_path_answers_in_two_shapes() -> None:
    engine = FakeAsyncEngine()
    engine.tokenizer = WithBytes()
    app, _ = app_for(engine=engine)
    assert tokens_of(app, content="ab") == {"tokens": [97, 98]}
    assert tokens_of(app, content="ab", add_special=True) == {"tokens": [1, 97, 98]}
    assert tokens_of(app, content="") == {"tokens": []}
    pieces = tokens_of(app, content="a\u00e1", with_pieces=True)["tokens"]
    assert pieces == [
        {"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 161, "piece": [161]},
    ]  # fmt: skip
    theirs = tokens_of(app, prompt="ab")
    assert theirs["count"] == 3 and theirs["tokens"] == [1, 97, 98]
    both = send(app, "POST", "/tokenize", {"content": "a", "prompt": "b"}).json()["error"]
    assert both["param"] == "content"
    assert send(app, "POST", "/tokenize", {}).status_code == 400
    text = send(app, "POST", "/detokenize", {"tokens": [97, 98]}).json()
    assert text["content"] == text["prompt"] == "ab"


class WithMark(FakeTokenizer):
    """Characters, and the special token <mark> unless a cut goes through it."""

    def __init__(self) -> None:
        super().__init__(facts=FakeFacts(special_texts={7: "<mark>"}))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        parts = text.split("<mark>")
        ids = [*map(ord, parts[0])]
        for part in parts[1:]:
            ids += [7, *map(ord, part)]
        return ids

    def special_around(self) -> tuple[list[int], list[int]]:
        return [], []


def test_special_tokens_may_be_plain_text() -> None:
    engine = FakeAsyncEngine()
    engine.tokenizer = WithMark()
    app, _ = app_for(engine=engine)
    assert tokens_of(app, content="a<mark>") == {"tokens": [97, 7]}
    plain = tokens_of(app, content="a<mark>", parse_special=False)
    assert plain == {"tokens": [*map(ord, "a<mark>")]}


def test_a_template_is_applied() -> None:
    app, engine = app_for()
    answer = send(app, "POST", "/apply-template", {"messages": USER, "color": "red"})
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert answer.json() == {"prompt": expected}
    assert answer.headers["x-dovetail-ignored-fields"] == "color"
    assert not engine.asked
    error = send(app, "POST", "/apply-template", {"messages": []}).json()["error"]
    assert error["code"] == 400 and "messages" in error["message"]


def test_facts_of_the_server() -> None:
    spec = fake_spec(default_sampling={"temperature": 0.25, "top_k": 9})
    app, _ = app_for(engine=FakeAsyncEngine(spec=spec))
    props = send(app, "GET", "/props").json()
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 4096
    assert (settings["params"]["temperature"], settings["params"]["top_k"]) == (0.25, 9)
    assert (props["total_slots"], props["model_alias"]) == (8, "fake")
    assert props["modalities"] == {"vision": False, "video": False, "audio": False}
    assert "<|im_start|>" in props["chat_template"]
    answer = send(app, "POST", "/props", {})
    assert answer.status_code == 501 and answer.json()["error"]["type"] == "not_supported_error"
    for path in ("/health", "/v1/health"):
        assert send(app, "GET", path).json() == {"status": "ok"}


def test_slots_show_what_runs() -> None:
    app, engine = app_for(engine=FakeAsyncEngine(Script(hangs=True), spec=fake_spec(max_rows=2)))

    async def main() -> tuple[Any, Any, int]:
        async with client_of(app) as client:
            idle = (await client.get("/slots")).json()
            body = {"prompt": "hi", "n_predict": 20, "temperature": 0.5, "stop": ["secret"]}
            work = asyncio.create_task(client.post("/completion", json=body))
            while not engine.running:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            engine.counts = (2, 0)
            busy = (await client.get("/slots")).json()
            full = (await client.get("/slots", params={"fail_on_no_slot": 1})).status_code
            work.cancel()
            await asyncio.wait([work])
            return idle, busy, full

    idle, busy, full = asyncio.run(main())
    assert [(one["id"], one["is_processing"]) for one in idle] == [(0, False), (1, False)]
    assert [one["is_processing"] for one in busy] == [True, True] and full == 503
    assert busy[0]["params"]["temperature"] == 0.5 and "params" not in busy[1]
    assert "secret" not in str(busy)
    assert busy[0]["next_token"]["n_decoded"] == len("Hello, world")
    assert busy[0]["next_token"]["n_remain"] == 20 - len("Hello, world")


def test_slots_without_files_of_blocks_are_not_saved() -> None:
    app, engine = app_for(enable_dev_endpoints=True)
    for action in ("save", "restore", "erase"):
        answer = send(app, "POST", f"/slots/0?action={action}", {"filename": "a.bin"})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (501, "not_supported_error")
        assert error["message"].startswith(f"action={action}: ") and "Fix: " in error["message"]
    for path in ("/slots/8?action=erase", "/slots/0", "/slots/0?action=melt", "/slots/x"):
        answer = send(app, "POST", path)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == 400
    assert not engine.num_resets


def pooling(**changes: Any) -> FastAPI:
    spec = fake_spec(pooling=fake_pooling(**changes), max_model_tokens=64)
    return app_for(engine=FakeAsyncEngine(spec=spec))[0]


def embedded(app: FastAPI, path: str = "/embedding", **fields: Any) -> Any:
    answer = send(app, "POST", path, fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
@pytest.mark.parametrize("field", ["content", "input"])
def test_vectors(path: str, field: str) -> None:
    app = pooling()
    ours = send(app, "POST", "/v1/embeddings", {"input": ["ab", "c"]}).json()["data"]
    for given in (["ab", "c"], [[97, 98], "c"], [["a", 98], [99]]):
        found = embedded(app, path, **{field: given})
        assert [one["index"] for one in found] == [0, 1]
        assert [one["embedding"] for one in found] == [[one["embedding"]] for one in ours]
    for one in ("ab", [97, 98], ["a", 98], {"prompt_string": "ab"}):
        (only,) = embedded(app, path, **{field: one})
        assert only["embedding"] == [ours[0]["embedding"]]


@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 3, 6])
def test_norms_of_vectors(norm: int) -> None:
    app = pooling()
    raw = np.array(embedded(app, content="ab", embd_normalize=-1)[0]["embedding"][0])
    found = np.array(embedded(app, content="ab", embd_normalize=norm)[0]["embedding"][0])
    length = {
        -1: 1.0,
        0: np.abs(raw).max() / 32760,
    }.get(norm) or (np.abs(raw) ** norm).sum() ** (1 / norm)
    np.testing.assert_allclose(found, raw / length, rtol=1e-5)


def test_vectors_of_each_token() -> None:
    app = pooling(tasks=(TOKEN_EMBED,))
    (only,) = embedded(app, content="abc")
    assert np.array(only["embedding"]).shape == (3, 8)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "input: is missing"),
        ({"content": "a", "input": "b"}, "content: give either"),
        ({"content": ["a", ""]}, "content[1]: is empty"),
        ({"content": "a", "embd_normalize": -2}, "embd_normalize"),
        ({"content": "x" * 100}, "content"),
    ],
)
def test_vectors_that_cannot_be_had(body: dict[str, Any], words: str) -> None:
    error = send(pooling(), "POST", "/embedding", body).json()["error"]
    assert words in error["message"] and error["code"] == 400


def test_a_model_of_another_task_says_so() -> None:
    app, _ = app_for()
    error = send(app, "POST", "/embedding", {"content": "a"}).json()["error"]
    assert error["type"] == "not_supported_error" and "embed" in error["message"]


@pytest.mark.parametrize("path", ["/reranking", "/v1/reranking", "/rerank", "/v1/rerank"])
def test_rankings(path: str) -> None:
    app = pooling(tasks=(CLASSIFY,), labels=("fits",))
    body = {"model": "fake", "query": "panda", "top_n": 2, "documents": ["hi", "bear", "panda"]}
    answer = send(app, "POST", path, body)
    assert answer.status_code == 200, answer.text
    ranking = answer.json()
    assert (ranking["object"], ranking["model"]) == ("list", "fake")
    scores = [one["relevance_score"] for one in ranking["results"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 2
    assert ranking["usage"]["prompt_tokens"] == ranking["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_chat_shows_times_and_progress_to_those_who_ask(stream: bool) -> None:
    app, _ = app_for(Script(pieces=["<think>a</think>", "bc"]))
    wanted = {"timings_per_token": True, "return_progress": True, "reasoning_format": "auto"}
    answer = chat(app, stream=stream, **wanted)
    assert "x-dovetail-ignored-fields" not in answer.headers
    if stream:
        first, *rest = [one for one in events_of(answer) if one != "[DONE]"]
        progress = first["prompt_progress"]
        assert progress["total"] == progress["processed"] > progress["cache"]
        assert not any("prompt_progress" in one for one in rest)
        timings = rest[-1]["timings"]
    else:
        timings = answer.json()["timings"]
    assert (timings["predicted_n"], timings["predicted_ms"]) == (18, 1000)
    plain = chat(app, stream=stream, timings_per_token=False)
    assert '"timings"' not in plain.text and '"prompt_progress"' not in plain.text
