"""A thinking whose budget is used up ends in closing words of the server, and the answer follows:
the same in any batch, with drafts, streamed and whole, held to its form, in every API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from dovetail import LLM, SamplingParams
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.interfaces.data.sampling_params import ThinkingBudget
from dovetail_testing.models import write_random_checkpoint, write_replay_checkpoint
from support.inside import core_of, watch_preemptions
from support.serving import events_of, joined
from support.whole_app import whole_client

pytestmark = pytest.mark.usefixtures("with_test_models")
jsonschema = pytest.importorskip("jsonschema")
MESSAGE = "... Time is up, so I answer now.\n"
WORDS = ("--reasoning-budget-message", MESSAGE)
THINKS = {"chat_template_kwargs": {"enable_thinking": True}}
PROMPTS = ("la la la la", "One two three", "The sea", "x", "Once upon a time")


@cache
def tokens_of(text: str) -> tuple[int, ...]:
    tokenizer = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


END = "</think>"
BUDGETS = (0, 1, 5, 17)


def request(number: int, **fields: Any) -> SamplingParams:
    """Return a request with a budget, whose answer is random."""
    thinking = ThinkingBudget(
        tokens=BUDGETS[number % len(BUDGETS)], end=END, end_ids=tokens_of(MESSAGE + END)
    )
    return SamplingParams(
        temperature=1.0,
        seed=number,
        max_tokens=50,
        ignore_eos=True,
        allowed_token_ids=(*range(300, 320),),
        thinking=thinking,
        **fields,
    )


FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
    "steps ahead": {"async_scheduling": True},
    "crowded": {"num_gpu_blocks_override": 12, "max_num_seqs": 6, "enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, ...]]:
    """Return each answer, run alone."""
    with LLM(max_model_len=128, use_tqdm_on_load=False) as llm:
        found = []
        for number in range(12):
            prompt = PROMPTS[number % len(PROMPTS)]
            (one,) = llm.generate(prompt, request(number), use_tqdm=False)
            found.append(one.outputs[0].token_ids)
        return found


def test_the_closing_words_follow_the_budget(alone: Sequence[tuple[int, ...]]) -> None:
    """Although no allowed token is one of them; then the answer goes on as before."""
    end = tokens_of(MESSAGE + END)
    for number, tokens in enumerate(alone):
        budget = BUDGETS[number % len(BUDGETS)]
        assert tokens[budget : budget + len(end)] == end
        others = {*tokens[:budget], *tokens[budget + len(end) :]}
        assert others <= {*range(300, 320)} and len(tokens) == 50


@pytest.mark.parametrize("name", FLAGS)
def test_the_same_in_any_batch(name: str, alone: Sequence[tuple[int, ...]]) -> None:
    with LLM(max_model_len=128, use_tqdm_on_load=False, **FLAGS[name]) as llm:
        preempted = watch_preemptions(core_of(llm))
        prompts = [PROMPTS[number % len(PROMPTS)] for number in range(len(alone))]
        params = [request(number) for number in range(len(alone))]
        found = llm.generate(prompts, params, use_tqdm=False)
        assert [one.outputs[0].token_ids for one in found] == list(alone)
        assert bool(preempted) == (name == "crowded")


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "boolean"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": PARAMETERS, "strict": True},
}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": PARAMETERS},
        }
    },
    "regex": {"structured_outputs": {"regex": "(yes|no)( [0-9]{2})?"}},
    "call": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
}


async def both(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """Return a whole answer, after a look at the streamed one, which is the same."""
    whole = await client.post("/v1/chat/completions", json=body)
    assert whole.status_code == 200, whole.text
    found = dict(whole.json())
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(await client.post("/v1/chat/completions", json=body | stream))
    assert events[-2]["usage"] == found["usage"]
    told, message = joined(events)["message"], found["choices"][0]["message"]
    assert told["content"] == (message["content"] or "")
    assert told["reasoning_content"] == (message["reasoning_content"] or "")
    assert [call["arguments"] for call in told["tool_calls"]] == [
        call["function"]["arguments"] for call in message["tool_calls"] or ()
    ]
    return found


def thought_tokens(choice: dict[str, Any]) -> int:
    """Return how many tokens an answer has up to the end of its thinking."""
    ids, end = tuple(choice["token_ids"]), tokens_of(MESSAGE + END)
    places = [i for i in range(len(ids)) if ids[i : i + len(end)] == end]
    assert len(places) == 1
    return places[0] + len(end)


async def check_form(client: httpx.AsyncClient, form: str, budget: int) -> None:
    message = {"role": "user", "content": "What about Rome?"}
    for seed in range(2):
        body = {"messages": [message], "max_tokens": 200, "seed": seed, "temperature": 1.0}
        body |= {"thinking_token_budget": budget, "return_token_ids": True, **FORMS[form]}
        found = await both(client, body)
        (choice,) = found["choices"]
        said = choice["message"]
        assert said["reasoning_content"].endswith(MESSAGE.rstrip())
        num_thought = thought_tokens(choice)
        # Random tokens are often parts of a character, which is finished first.
        assert 0 <= num_thought - budget - len(tokens_of(MESSAGE + END)) <= 4
        details = found["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == num_thought
        if form == "call":
            (call,) = said["tool_calls"]
            jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS)
        elif form == "schema":
            jsonschema.validate(json.loads(said["content"]), PARAMETERS)
        else:
            assert said["content"].strip()[:2] in ("ye", "no")


def test_the_answer_is_held_to_its_form(tmp_path: Path) -> None:
    model = write_random_checkpoint(tmp_path / "noise", tokenizer_from=DEMO_PATH)
    template = tmp_path / "thinks.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n")
    parsers = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes")
    flags = ("--chat-template", str(template), *parsers)

    async def main() -> None:
        async with whole_client(model, *flags, *WORDS) as client:
            for form in FORMS:
                for budget in (0, 9):
                    await check_form(client, form, budget)

    asyncio.run(main())


SCRIPT = "<think>\nOne two three four five six seven eight nine ten.\n</think>\n\nDone, I say."
TURNS = [{"role": "user", "content": "say 0"}]


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that thinks for some tokens, then answers."""
    return write_replay_checkpoint(
        tmp_path_factory.mktemp("replay"),
        tokenizer_from=DEMO_PATH,
        scripts=[{"tokens": list(tokens_of(SCRIPT))}],
        cue_base=tokens_of("0")[0],
    )


async def thought_of(client: httpx.AsyncClient, **fields: Any) -> tuple[str, str]:
    """Return (the reasoning, the finish reason) of the script under a budget."""
    body = {"messages": TURNS, "temperature": 0, "max_tokens": 120, **THINKS, **fields}
    (choice,) = (await both(client, body))["choices"]
    return choice["message"]["reasoning_content"] or "", choice["finish_reason"]


def test_every_api_ends_it_softly(replay: Path) -> None:
    async def main() -> None:
        async with whole_client(replay, *WORDS) as client:
            thought, _ = await thought_of(client, thinking_token_budget=4)
            closing = MESSAGE.rstrip()
            assert thought.endswith(closing) and "One" in thought and "six" not in thought
            assert await thought_of(client, thinking_token_budget=900) == await thought_of(client)
            long, reason = await thought_of(client, thinking_token_budget=90, max_tokens=6)
            assert reason == "length" and closing not in long
            body = {"input": "say 0", "temperature": 0, "thinking_token_budget": 4, **THINKS}
            response = (await client.post("/v1/responses", json=body)).json()
            assert response["output"][0]["content"][0]["text"].strip() == thought.strip()
            body = {"messages": TURNS, "temperature": 0, "max_tokens": 120}
            body["thinking"] = {"type": "enabled", "budget_tokens": 4}
            message = (await client.post("/v1/messages", json=body)).json()
            assert message["content"][0]["thinking"].strip() == thought.strip()

    asyncio.run(main())


def test_the_servers_budget_is_that_of_requests_without_one(replay: Path) -> None:
    async def main() -> None:
        async with whole_client(replay, "--reasoning-budget", "4", *WORDS) as client:
            assert "six" not in (await thought_of(client))[0]
            own, _ = await thought_of(client, thinking_token_budget=100)
            assert "six" in own and MESSAGE.strip() not in own
            body = {"messages": TURNS, "n": 2, "use_beam_search": True, "max_tokens": 4}
            beams = await client.post("/v1/chat/completions", json=body | {"temperature": 0})
            assert beams.status_code == 200, beams.text
        flags = ("--reasoning-budget", "4", "--reasoning-parser", "none")
        async with whole_client(replay, *flags) as client:
            body = {"messages": TURNS, "temperature": 0, "max_tokens": 120}
            whole = (await client.post("/v1/chat/completions", json=body)).json()
            assert "six" in whole["choices"][0]["message"]["content"]

    asyncio.run(main())


def test_without_closing_words_the_end_comes_alone(replay: Path) -> None:
    async def main() -> None:
        async with whole_client(replay) as client:
            thought, _ = await thought_of(client, thinking_token_budget=4)
            free, _ = await thought_of(client)
            assert thought and free.startswith(thought) and thought != free

    asyncio.run(main())
