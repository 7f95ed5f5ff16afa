"""An answer that repeats itself ends at the same token in any batch, with drafts, preempted and
streamed, and every API says why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail import LLM, SamplingParams
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.errors import RequestError
from dovetail_testing.models import write_replay_checkpoint
from support.inside import core_of, watch_preemptions
from support.serving import events_of
from support.whole_app import whole_client

pytestmark = pytest.mark.usefixtures("with_test_models")
LIMITS = {"max_pattern_size": 6, "min_pattern_size": 2, "min_count": 3}
PROMPTS = ("la la la la", "One two three", "The sea", "x", "Once upon a time")
NUM_TOKENS = 60


def request(seed: int, limits: dict[str, int] | None = None, **fields: Any) -> SamplingParams:
    """Return a request whose answer is random and has only two words, so that it soon repeats."""
    extra = {} if limits is None else {"extra_args": {"repetition_detection": limits}}
    usual = {"temperature": 1.0, "seed": seed, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return SamplingParams(**{**usual, "allowed_token_ids": (300, 301), **extra, **fields})


def first_end(tokens: Sequence[int]) -> int:
    """Return how many tokens an answer may have before it repeats itself too often."""
    for end in range(1, len(tokens) + 1):
        for size in range(LIMITS["min_pattern_size"], LIMITS["max_pattern_size"] + 1):
            whole = size * LIMITS["min_count"]
            tail = tuple(tokens[end - size : end])
            if whole <= end and tuple(tokens[end - whole : end]) == tail * LIMITS["min_count"]:
                return end
    return len(tokens)


Answer = tuple[tuple[int, ...], str | None, Any]


def answers(llm: LLM, params: Sequence[SamplingParams]) -> list[list[Answer]]:
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(len(params))]
    found = llm.generate(prompts, list(params), use_tqdm=False)
    return [[(o.token_ids, o.finish_reason, o.stop_reason) for o in one.outputs] for one in found]


def cut(answer: Answer) -> Answer:
    """Return what must become of an answer that was not watched."""
    end = first_end(answer[0])
    is_whole = end == len(answer[0])
    return answer if is_whole else (answer[0][:end], "repetition", "repetition_detected")


FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
    "steps ahead": {"async_scheduling": True},
    "crowded": {"num_gpu_blocks_override": 14, "max_num_seqs": 6, "enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def unwatched() -> list[list[Answer]]:
    """Return the answers without limits, each alone."""
    with LLM(max_model_len=128, use_tqdm_on_load=False) as llm:
        prompts = [PROMPTS[i % len(PROMPTS)] for i in range(20)]
        found = []
        for seed, prompt in enumerate(prompts):
            (one,) = llm.generate(prompt, request(seed, n=2), use_tqdm=False)
            found.append([(o.token_ids, o.finish_reason, o.stop_reason) for o in one.outputs])
        return found


@pytest.mark.parametrize("name", FLAGS)
def test_it_ends_at_the_same_token_in_any_batch(name: str, unwatched: list[list[Answer]]) -> None:
    """Every other request has no limits, so its answer is the same as when it runs alone."""
    with LLM(max_model_len=128, use_tqdm_on_load=False, **FLAGS[name]) as llm:
        core = core_of(llm)
        preempted = watch_preemptions(core)
        limits = [LIMITS if seed % 2 else None for seed in range(len(unwatched))]
        params = [request(seed, one, n=2) for seed, one in enumerate(limits)]
        wanted = [
            [cut(answer) if one else answer for answer in answers_of_one]
            for answers_of_one, one in zip(unwatched, limits, strict=True)
        ]
        assert answers(llm, params) == wanted
        assert bool(preempted) == (name == "crowded")
        core.check_idle()
    ends = {answer[1] for one in wanted for answer in one}
    assert ends == {"repetition", "length"}


def test_what_else_ends_an_answer_comes_first(unwatched: list[list[Answer]]) -> None:
    """A stop string, a stop token, the length; and `min_tokens` is reached first."""
    seed = next(i for i, one in enumerate(unwatched) if first_end(one[0][0]) < 40)
    (tokens, _, _) = unwatched[seed][0]
    end = first_end(tokens)
    prompt = PROMPTS[seed % len(PROMPTS)]
    with LLM(max_model_len=128, use_tqdm_on_load=False) as llm:
        word = llm.get_tokenizer().decode([tokens[0]])

        def ended(**fields: Any) -> Answer:
            params = request(seed, fields.pop("limits", LIMITS), **fields)
            (one,) = llm.generate(prompt, params, use_tqdm=False)
            return (
                one.outputs[0].token_ids,
                one.outputs[0].finish_reason,
                one.outputs[0].stop_reason,
            )

        assert ended() == (tokens[:end], "repetition", "repetition_detected")
        assert ended(max_tokens=end) == (tokens[:end], "length", None)
        assert ended(stop=(word,)) == (tokens[:1], "stop", word)
        assert ended(stop_token_ids=(tokens[0],)) == (tokens[:1], "stop", tokens[0])
        assert ended(limits={"max_pattern_size": 0})[1] == "length"
        later = ended(min_tokens=end + 1)
        assert len(later[0]) > end
        with pytest.raises(RequestError, match="min_count"):
            ended(limits={"max_pattern_size": 3, "min_count": 1})


def test_options_are_the_limits_of_every_request(unwatched: list[list[Answer]]) -> None:
    options = {"stop_condition": {"repetition_detection": LIMITS}}
    with LLM(max_model_len=128, use_tqdm_on_load=False, plugin_options=options) as llm:
        params = [request(seed, n=2) for seed in range(6)]
        params[0] = request(0, {"max_pattern_size": 0}, n=2)
        wanted = [unwatched[0], *([cut(a) for a in one] for one in unwatched[1:6])]
        assert answers(llm, params) == wanted


TEXT = "I think. I will look. I will look. I will look. I will look. Done."
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "%s"}}\n</tool_call>\n'
SCRIPTS = [TEXT, f"<think>\n{TEXT}\n</think>\n\nDone.", (CALL % "x") * 6, CALL % ("ab, " * 20)]
ASKED = {"repetition_detection": {"max_pattern_size": 30, "min_count": 3}}


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answer is the script that the last digit of the conversation names."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))
    scripts = [{"tokens": tokenizer.encode(s, add_special_tokens=False).ids} for s in SCRIPTS]
    first = tokenizer.encode("0", add_special_tokens=False).ids[0]
    return write_replay_checkpoint(
        tmp_path_factory.mktemp("replay"), tokenizer_from=DEMO_PATH, scripts=scripts, cue_base=first
    )


def turns(script: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"say {script}"}]


async def seen_by_chat(client: httpx.AsyncClient, script: int, **more: Any) -> dict[str, Any]:
    """Return the choice, which is the same whole and streamed."""
    body = {"messages": turns(script), "temperature": 0, **ASKED, **more}
    whole = await client.post("/v1/chat/completions", json=body)
    assert whole.status_code == 200, whole.text
    assert "x-dovetail-ignored-fields" not in whole.headers
    choice = whole.json()["choices"][0]
    streamed = events_of(await client.post("/v1/chat/completions", json=body | {"stream": True}))
    chunks = [event["choices"][0] for event in streamed if event != "[DONE]"]
    ends = [chunk for chunk in chunks if chunk["finish_reason"]]
    assert [(e["finish_reason"], e.get("stop_reason")) for e in ends] == [
        (choice["finish_reason"], choice["stop_reason"])
    ]
    for field in ("content", "reasoning"):
        text = "".join(chunk["delta"].get(field) or "" for chunk in chunks)
        assert text == (choice["message"].get(field) or "")
    return dict(choice)


def test_every_api_says_why(replay: Path) -> None:
    async def main() -> None:
        async with whole_client(replay) as client:
            await says_why(client)

    asyncio.run(main())


def data_of(response: httpx.Response) -> list[Any]:
    """Return the data of named server-sent events."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def says_why(client: httpx.AsyncClient) -> None:
    said = "I think. I will look. I will look. I will look."
    choice = await seen_by_chat(client, 0)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    assert choice["message"]["content"].rstrip(".") == said.rstrip(".")
    thought = await seen_by_chat(client, 1)
    assert thought["finish_reason"] == "repetition"
    assert thought["message"]["content"] in (None, "")
    assert thought["message"]["reasoning"].strip().rstrip(".") == said.rstrip(".")
    unlimited = await seen_by_chat(client, 0, repetition_detection=None)
    assert unlimited["finish_reason"] == "stop"

    body = {"prompt": "say 0", "max_tokens": 60, "temperature": 0, **ASKED}
    text = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    assert (text["finish_reason"], text["stop_reason"]) == ("repetition", "repetition_detected")

    for stream in (False, True):
        body = {"input": "say 0", "temperature": 0, "stream": stream, **ASKED}
        response = await client.post("/v1/responses", json=body)
        assert "x-dovetail-ignored-fields" not in response.headers
        found = data_of(response)[-1]["response"] if stream else response.json()
        assert found["status"] == "incomplete"
        assert found["incomplete_details"] == {"reason": "repetition"}
        assert found["output"][0]["status"] == "incomplete"

    body = {"messages": turns(0), "max_tokens": 60, "temperature": 0, **ASKED}
    message = (await client.post("/v1/messages", json=body)).json()
    wanted = ("stop_sequence", "repetition_detected")
    assert (message["stop_reason"], message["stop_sequence"]) == wanted
    events = data_of(await client.post("/v1/messages", json=body | {"stream": True}))
    (delta,) = [event["delta"] for event in events if event["type"] == "message_delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == wanted

    body = {"model": str(client.base_url), "messages": turns(0), **ASKED}
    body["model"] = (await client.get("/v1/models")).json()["data"][0]["id"]
    lines = (await client.post("/api/chat", json=body)).text.splitlines()
    assert json.loads(lines[-1])["done_reason"] == "repetition"


def test_calls_that_repeat(replay: Path) -> None:
    """Whole calls stay calls; one that was cut within is never a call to run."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    async def main() -> None:
        async with whole_client(replay) as client:
            many = await seen_by_chat(client, 2, tools=[tool], max_tokens=400)
            assert many["finish_reason"] == "repetition"
            assert len(many["message"]["tool_calls"]) >= 2
            within = await seen_by_chat(client, 3, tools=[tool], max_tokens=400)
            assert within["finish_reason"] == "repetition"
            body = {"messages": turns(3), "max_tokens": 400, "temperature": 0, **ASKED}
            body["tools"] = [{"name": "look", "input_schema": {"type": "object"}}]
            message = (await client.post("/v1/messages", json=body)).json()
            assert message["stop_reason"] == "max_tokens"
            assert not [b for b in message["content"] if b["type"] == "tool_use"]

    asyncio.run(main())


def test_wrong_limits_are_the_clients_fault(replay: Path) -> None:
    async def main() -> None:
        async with whole_client(replay) as client:
            wrong = {"repetition_detection": {"max_pattern_size": 3, "min_count": 1}}
            for path, body in (
                ("/v1/chat/completions", {"messages": turns(0)}),
                ("/v1/responses", {"input": "say 0"}),
            ):
                answer = await client.post(path, json=body | wrong)
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "repetition_detection.min_count"
            beams = {
                "messages": turns(0),
                "use_beam_search": True,
                "n": 2,
                "temperature": 0,
                **ASKED,
            }
            answer = await client.post("/v1/chat/completions", json=beams)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "repetition_detection"

    asyncio.run(main())
