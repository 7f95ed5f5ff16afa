"""llama.cpp's server API on the demo model: the examples of its page, in other words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess
from support.serving import events_of

pytestmark = pytest.mark.e2e
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    flags = ("--max-model-len", "512", "--max-num-seqs", "4", "--enable-dev-endpoints")
    probabilities = ("--logprobs-mode", "processed_logprobs")
    with (
        ServerProcess("--port", "0", *flags, *probabilities) as server,
        server.wait_ready().client() as made,
    ):
        yield made


def told(client: httpx.Client, path: str, body: Any = None) -> Any:
    answer = client.get(path) if body is None else client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def complete(client: httpx.Client, **fields: Any) -> Any:
    """Return the whole answer, after a check that its stream says the same."""
    body = {"n_predict": 16, "temperature": 0, "prompt": prompt_of(client, "Say hello.")} | fields
    whole = told(client, "/completion", body)
    streamed = events_of(client.post("/completion", json=body | {"stream": True}))
    answers = whole if isinstance(whole, list) else [whole]
    for answer in answers:
        *pieces, last = [one for one in streamed if one["index"] == answer["index"]]
        assert "".join(one["content"] for one in pieces) == answer["content"]
        same = ("stop_type", "stopping_word", "tokens_predicted", "prompt", "truncated", "model")
        assert {name: last[name] for name in same} == {name: answer[name] for name in same}
    return whole


def prompt_of(client: httpx.Client, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    return str(told(client, "/apply-template", {"messages": messages})["prompt"])


def test_a_prompt_is_continued(client: httpx.Client) -> None:
    answer = complete(client)
    assert answer["content"] and answer["stop"] is True
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["temperature"]) == (16, 0)
    chat = told(
        client,
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Say hello."}],
            "temperature": 0,
            "max_tokens": 16,
        },
    )
    assert answer["content"] == chat["choices"][0]["message"]["content"]
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == answer["tokens_evaluated"]
    assert timings["predicted_n"] == answer["tokens_predicted"]
    assert timings["predicted_ms"] > 0 and timings["predicted_per_second"] > 0


def test_how_answers_end(client: httpx.Client) -> None:
    whole = complete(client, n_predict=-1)
    assert whole["stop_type"] == "eos" and not whole["truncated"]
    short = complete(client, n_predict=3)
    assert (short["stop_type"], short["tokens_predicted"]) == ("limit", 3)
    word = whole["content"].split()[1]
    cut = complete(client, stop=[word, "never"])
    assert (cut["stop_type"], cut["stopping_word"]) == ("word", word)
    assert cut["content"] == whole["content"].partition(word)[0]
    full = complete(client, n_predict=-1, ignore_eos=True)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["tokens_evaluated"] + full["tokens_predicted"] == 512
    nothing = told(client, "/completion", {"prompt": "a", "n_predict": 0})
    assert (nothing["content"], nothing["tokens_predicted"]) == ("", 0)


def test_prompts_as_texts_tokens_and_both(client: httpx.Client) -> None:
    text = prompt_of(client, "Say hello.")
    wanted = complete(client)["content"]
    ids = told(client, "/tokenize", {"content": text, "add_special": True})["tokens"]
    assert told(client, "/detokenize", {"tokens": ids})["content"] == text
    half = len(ids) // 2
    rest = told(client, "/detokenize", {"tokens": ids[half:]})["content"]
    for prompt in (ids, [*ids[:half], rest], {"prompt_string": text}):
        assert complete(client, prompt=prompt)["content"] == wanted
    several = complete(client, prompt=[text, ids, {"prompt_string": text}], n_predict=8)
    assert [one["index"] for one in several] == [0, 1, 2]
    assert {one["content"] for one in several} == {complete(client, n_predict=8)["content"]}
    drawn = told(client, "/completion", {"prompt": text, "n_cmpl": 3, "seed": 7, "n_predict": 4})
    assert [one["index"] for one in drawn] == [0, 1, 2]


def test_grammars_and_schemas(client: httpx.Client) -> None:
    answer = complete(client, grammar='root ::= "yes" | "no"', n_predict=8)
    assert answer["content"] in ("yes", "no")
    answer = complete(client, json_schema=SCHEMA, n_predict=60)
    assert set(json.loads(answer["content"])) == {"city"}
    bad = client.post("/completion", json={"prompt": "a", "grammar": "root ::= ("})
    error = bad.json()["error"]
    assert (bad.status_code, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert error["message"].startswith("grammar: ")


def test_probabilities_after_sampling(client: httpx.Client) -> None:
    fields = {"n_probs": 3, "temperature": 1.0, "seed": 3, "n_predict": 5, "return_tokens": True}
    text = prompt_of(client, "Say hello.")
    answer = told(client, "/completion", {"prompt": text, **fields, "post_sampling_probs": True})
    plain = told(client, "/completion", {"prompt": text, **fields})
    shown = answer["completion_probabilities"]
    assert [one["id"] for one in shown] == answer["tokens"] == plain["tokens"]
    for one, other in zip(shown, plain["completion_probabilities"], strict=True):
        assert one["prob"] == pytest.approx(math.exp(other["logprob"]))
        assert sum(top["prob"] for top in one["top_probs"]) <= 1 + 1e-6
        assert 1 <= len(one["top_probs"]) <= 3
        assert bytes(one["bytes"]).decode() == one["token"]


def test_biases_ban_and_force(client: httpx.Client) -> None:
    first = complete(client, n_predict=1, return_tokens=True)["tokens"][0]
    for bias in ([[first, False]], {str(first): -100}):
        assert complete(client, n_predict=1, return_tokens=True, logit_bias=bias)["tokens"] != [
            first
        ]
    forced = complete(client, n_predict=3, logit_bias=[["z", 100]])
    assert set(forced["content"]) == {"z"}


def test_prefixes_are_reused_unless_not_wanted(client: httpx.Client) -> None:
    text = prompt_of(client, " ".join(map(str, range(40))))
    body = {"prompt": text, "n_predict": 1}
    told(client, "/completion", body)
    assert told(client, "/completion", body)["tokens_cached"] > 0
    assert told(client, "/completion", body | {"cache_prompt": False})["tokens_cached"] == 0
    refused = client.post("/slots/0?action=erase", json={})
    assert refused.status_code == 501 and "/reset_prefix_cache" in refused.text
    assert client.post("/reset_prefix_cache").status_code == 200
    assert told(client, "/completion", body)["tokens_cached"] == 0


def test_progress_and_times_of_a_stream(client: httpx.Client) -> None:
    body = {"prompt": "one two three", "n_predict": 4, "stream": True}
    wanted = {"return_progress": True, "timings_per_token": True}
    first, *pieces, last = events_of(client.post("/completion", json=body | wanted))
    assert first["prompt_progress"]["processed"] == last["tokens_evaluated"]
    counts = [one["timings"]["predicted_n"] for one in pieces]
    assert counts == sorted(counts) and counts[-1] == last["tokens_predicted"] == 4


def test_what_its_page_reads(client: httpx.Client) -> None:
    props = told(client, "/props")
    assert props["total_slots"] == 4 == len(told(client, "/slots"))
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert told(client, "/health") == told(client, "/v1/health") == {"status": "ok"}
    assert told(client, "/lora-adapters") == []
    body = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": True,
        "timings_per_token": True,
        "return_progress": True,
        "reasoning_format": "auto",
        "samplers": "edkypmxt",
        "max_tokens": 8,
    }
    answer = client.post("/v1/chat/completions", json=body)
    chunks = [one for one in events_of(answer) if one != "[DONE]"]
    assert chunks[0]["prompt_progress"]["total"] > 0
    assert chunks[-1]["timings"]["predicted_n"] > 0
    assert all("timings" in one for one in chunks)


def test_pieces_join_to_the_text(client: httpx.Client) -> None:
    text = "naïve ☺ text"
    tokens = told(client, "/tokenize", {"content": text, "with_pieces": True})["tokens"]
    pieces = [one["piece"] for one in tokens]
    joined = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in pieces)
    assert joined.decode() == text
    assert re.fullmatch(r"[\d, ]+", ", ".join(str(one["id"]) for one in tokens))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_of_langchain(client: httpx.Client) -> None:
    llms = pytest.importorskip("langchain_community.llms.llamafile")
    llm = llms.Llamafile(base_url=str(client.base_url), n_predict=16, temperature=0, seed=1)
    prompt = prompt_of(client, "Say hello.")
    wanted = complete(client)["content"]
    assert llm.invoke(prompt) == wanted
    assert "".join(llm.stream(prompt)) == wanted
