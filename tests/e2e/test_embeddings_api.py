"""A server of a tiny BERT: vectors in every format, to several clients, equal transformers'."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from support.browser import opened_browser, programs
from support.server_process import ServerProcess
from support.tiny_berts import MAX_TOKENS, write_bert

pytestmark = pytest.mark.e2e
TEXTS = ["the cat sat.", "a cat", "the cat sat, the cat sat, the cat sat"]
BROKEN = "z"
PROMPTS = {"query": "ask, ", "document": ""}
CHAT = "{% for m in messages %}{{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bert") / "tiny-bert"


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    """Return a function: texts -> transformers' vectors of their first tokens, of length 1."""
    import torch
    from transformers import AutoTokenizer

    model = write_bert(folder, prompts=PROMPTS, broken=BROKEN)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def embed(texts: list[str], *, is_normal: bool = True) -> np.ndarray:
        with torch.no_grad():
            told = [model(**tokenizer(text, return_tensors="pt"))[0][0, 0] for text in texts]
        found = torch.stack(told)
        return (torch.nn.functional.normalize(found, dim=-1) if is_normal else found).numpy()

    return embed


@pytest.fixture(scope="module")
def server(folder: Path, theirs: Any) -> Iterator[ServerProcess]:
    flags = ("--port", "0", "--chat-template", CHAT, "--hf-overrides.is_matryoshka", "true")
    with ServerProcess(str(folder), "--max-num-seqs", "16", *flags) as made:
        yield made.wait_ready()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


def embed(client: httpx.Client, given: Any, **fields: Any) -> Any:
    """Return the vectors of inputs, as they are written."""
    answer = client.post("/v1/embeddings", json={"input": given} | fields)
    assert answer.status_code == 200, answer.text
    return [one["embedding"] for one in answer.json()["data"]]


def refused(client: httpx.Client, path: str, body: Any, status: int = 400) -> Any:
    """Return the error of a request that is refused."""
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def test_vectors_equal_transformers(client: httpx.Client, theirs: Any) -> None:
    np.testing.assert_allclose(embed(client, TEXTS), theirs(TEXTS), atol=2e-6)
    np.testing.assert_allclose(embed(client, TEXTS[0]), theirs(TEXTS[:1]), atol=2e-6)
    plain = embed(client, TEXTS, normalize=False)
    np.testing.assert_allclose(plain, theirs(TEXTS, is_normal=False), rtol=1e-5, atol=1e-5)


def test_tokens_and_conversations(client: httpx.Client) -> None:
    (whole,) = embed(client, TEXTS[0])
    ids = client.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    np.testing.assert_allclose(embed(client, ids)[0], whole, atol=1e-6)
    np.testing.assert_allclose(embed(client, [ids, ids]), [whole, whole], atol=1e-6)
    messages = [{"role": "user", "content": TEXTS[0]}]
    body = {"messages": messages, "add_special_tokens": True}
    chat = client.post("/v1/embeddings", json=body).json()
    np.testing.assert_allclose(chat["data"][0]["embedding"], whole, atol=1e-6)
    assert chat["usage"]["prompt_tokens"] == len(ids)


def test_instructions_by_name_and_by_type(client: httpx.Client) -> None:
    (asked,) = embed(client, PROMPTS["query"] + TEXTS[0])
    assert embed(client, TEXTS[0], prompt_name="query") == [asked]
    assert embed(client, TEXTS[0], input_type="search_query") == [asked]
    assert embed(client, TEXTS[0], input_type="search_document") == embed(client, TEXTS[0])
    error = refused(client, "/v1/embeddings", {"input": "a", "prompt_name": "poem"})
    assert error["param"] == "prompt_name" and "document, query" in error["message"]


def test_formats_are_of_the_same_numbers(client: httpx.Client) -> None:
    (floats,) = np.array(embed(client, TEXTS[:1]), dtype=np.float32)

    def decoded(dtype: str, **fields: Any) -> np.ndarray:
        (text,) = embed(client, TEXTS[:1], encoding_format="base64", **fields)
        return np.frombuffer(base64.b64decode(text), dtype=dtype)

    assert np.array_equal(decoded("<f4"), floats)
    assert np.array_equal(decoded(">f4", endianness="big"), floats)
    assert np.array_equal(decoded("<f2", embed_dtype="float16"), floats.astype(np.float16))
    halves = decoded("<u2", embed_dtype="bfloat16").astype(np.uint32) << 16
    np.testing.assert_allclose(halves.view(np.float32), floats, rtol=2**-8)
    for name, shift in (("int8", 0), ("uint8", 128)):
        (told,) = embed(client, TEXTS[:1], encoding_format=name)
        numbers = np.array(told, dtype=np.float32) - shift
        assert abs(numbers).max() == 127
        assert numbers @ floats / np.linalg.norm(numbers) > 0.999
    (packed,) = embed(client, TEXTS[:1], encoding_format="ubinary")
    assert np.array_equal(np.unpackbits(np.array(packed, dtype=np.uint8)), floats > 0)
    (signed,) = embed(client, TEXTS[:1], encoding_format="binary")
    assert [number + 128 for number in signed] == packed


def test_fewer_dimensions_and_fewer_tokens(client: httpx.Client) -> None:
    (whole,) = np.array(embed(client, TEXTS[2]))
    (short,) = embed(client, TEXTS[2], dimensions=16)
    np.testing.assert_allclose(short, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-6)
    words = TEXTS[2].replace(",", "").split()
    starts = embed(client, " ".join(words), truncate_prompt_tokens=5)
    assert starts == embed(client, " ".join(words[:3]))
    ends = embed(client, " ".join(words), truncate_prompt_tokens=5, truncation_side="left")
    assert ends == embed(client, " ".join(words[-3:]))
    long = " ".join(["cat"] * (2 * MAX_TOKENS))
    assert embed(client, long, truncate_prompt_tokens=-1) == embed(
        client, " ".join(["cat"] * (MAX_TOKENS - 2))
    )


def test_the_openai_client(server: ServerProcess, theirs: Any) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        for encoding in ({}, {"encoding_format": "float"}):
            found = client.embeddings.create(model="", input=TEXTS, **encoding)
            vectors = [one.embedding for one in found.data]
            np.testing.assert_allclose(vectors, theirs(TEXTS), atol=2e-6)
            assert found.usage.prompt_tokens == found.usage.total_tokens > 0
        with pytest.raises(openai.NotFoundError, match='"generate"'):
            client.chat.completions.create(model="", messages=[{"role": "user", "content": "a"}])


POISON = [
    ({"input": ""}, 400, "input"),
    ({"input": []}, 400, "input"),
    ({"input": ["a", ""]}, 400, "input[1]"),
    ({"input": [[1], []]}, 400, "input[1]"),
    ({"input": [1, 10**6]}, 400, "input"),
    ({"input": [[1], [10**6]]}, 400, "input[1]"),
    ({"input": [-1]}, 400, "input[0]"),
    ({"input": "cat " * 200}, 400, "input"),
    ({"input": ["a", "cat " * 200]}, 400, "input[1]"),
    ({"input": ["a"] * 100_000}, 400, "input"),
    ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "input"),
    ({"input": "a", "dimensions": 65}, 400, "dimensions"),
    ({"input": "a", "encoding_format": "words"}, 400, "encoding_format"),
    ({"input": "a", "truncate_prompt_tokens": 1}, 400, "truncate_prompt_tokens"),
    ({"input": "a", "model": "another"}, 404, "model"),
]


@pytest.mark.parametrize(("body", "status", "where"), POISON, ids=lambda one: str(one)[:40])
def test_poison(client: httpx.Client, body: Any, status: int, where: str) -> None:
    assert refused(client, "/v1/embeddings", body, status)["param"] == where


def test_the_limit_of_inputs_is_named(client: httpx.Client) -> None:
    error = refused(client, "/v1/embeddings", {"input": ["a"] * 100_000})
    assert "100000" in error["message"] and "8192" in error["message"]


def test_what_is_not_finite_fails_its_request_alone(client: httpx.Client) -> None:
    (whole,) = embed(client, TEXTS[0])
    error = refused(client, "/v1/embeddings", {"input": [TEXTS[0], BROKEN, TEXTS[1]]}, 500)
    assert "not finite" in error["message"]
    assert embed(client, TEXTS[0]) == [whole]


def test_many_inputs_come_in_order(client: httpx.Client) -> None:
    texts = [" ".join(["cat"] * (1 + which % 9)) for which in range(500)]
    told = np.array(embed(client, texts))
    alone = np.array([embed(client, text)[0] for text in texts[:9]])
    np.testing.assert_allclose(told, alone[np.arange(500) % 9], atol=1e-5)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
)
def test_endpoints_that_generate_say_what_the_model_does(client: httpx.Client, path: str) -> None:
    error = refused(client, path, {"prompt": "a"}, 404)
    assert "embed" in error["message"] and "generate" in error["message"]


def test_what_the_server_counts(client: httpx.Client) -> None:
    def figures() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("dovetail:")]
        return {name: float(value) for name, value in pairs}

    before = figures()
    usage = client.post("/v1/embeddings", json={"input": TEXTS}).json()["usage"]
    after = figures()
    grown = {name: after[name] - before.get(name, 0.0) for name in after}

    def total(name: str, label: str = "") -> float:
        return sum(n for key, n in grown.items() if key.startswith(name + "{") and label in key)

    assert total("dovetail:prompt_tokens_total") == usage["prompt_tokens"] > 0
    assert total("dovetail:request_success_total", 'finished_reason="stop"') == len(TEXTS)
    assert total("dovetail:generation_tokens_total") == usage["completion_tokens"] == 0
    assert total("dovetail:http_requests_total", '"/v1/embeddings"') == 1


@pytest.mark.slow
def test_the_page_offers_no_chat(server: ServerProcess) -> None:
    programs()
    with opened_browser(server.url) as page:
        page.open()
        assert "does not chat" in page.wait(lambda: page.text(".purpose h1"))
        assert "/v1/embeddings" in page.text(".purpose")
        assert page.all("#view-chat > *") == page.all(".purpose")
