"""TextProcess: what large bodies and long prompts become, what is refused, and when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psutil
import pytest

from dovetail.engine.client.requests.input_processor import load_tokenizer
from dovetail.engine.client.text import long_text, text_process
from dovetail.engine.client.text.text_process import TextProcess
from dovetail.errors import Overloaded, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_testing.fakes.engine import ByteTokenizer, fake_spec

CONTEXT = 256


class Bounded(ByteTokenizer):
    """One token per byte, and says so."""

    def longest_token_chars(self) -> int:
        return 1


def bounded_spec() -> EngineSpec:
    spec = fake_spec(max_model_tokens=CONTEXT)
    chosen = msgspec.structs.replace(spec.tokenizer, target=f"{__file__}:Bounded")
    return msgspec.structs.replace(spec, tokenizer=chosen)


@asynccontextmanager
async def running(spec: EngineSpec | None = None, *, busy: bool = False) -> AsyncIterator[Any]:
    process = TextProcess(spec or bounded_spec(), lambda: busy)
    try:
        yield process
    finally:
        await process.close()


def run(work: Callable[[TextProcess], Coroutine[Any, Any, Any]], **how: Any) -> Any:
    async def main() -> Any:
        async with running(**how) as process:
            return await work(process)

    return asyncio.run(main())


BODY: dict[str, Any] = {
    "model": "m",
    "temperature": 0.25,
    "big": (1 << 64) - 1,
    "small": -(1 << 63),
    "flags": [True, False, None],
    "nested": {"a": [{"b": ["\u00e9", "\U0001f600", "\x00", ""]}]},
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "prompt": ["a", "b"],
}


def test_a_body_becomes_what_json_reads() -> None:
    async def work(process: TextProcess) -> None:
        for ascii_only in (True, False):
            data = json.dumps(BODY, ensure_ascii=ascii_only).encode()
            assert await process.parse(data, is_bounded=True) == BODY
        weird = await process.parse(b'{"a": NaN, "b": -Infinity, "a": 1}', is_bounded=True)
        assert weird == json.loads(b'{"a": 1, "b": -Infinity}')

    run(work)


LONG = "x" * 1000
FAULTS: list[tuple[bytes, str, str | None, str | None]] = [
    (b'{"a": ', "not valid JSON: expecting value at character 6", None, "invalid_json"),
    (b"\xff\xfe\xfa", "not valid JSON", None, "invalid_json"),
    (b"[" * 100_000, "not valid JSON: it is nested too deep", None, "invalid_json"),
    (b'{"a": 18446744073709551616}', "64 bits", None, None),
    (b'{"a": [0, "\\ud800"]}', "not valid Unicode", "a[1]", None),
    (b'{"\\ud800": 1}', "not valid Unicode", None, None),
    (b"[" + b"1," * (1 << 20) + b"1]", "more than 1048576 values", None, "body_too_large"),
] + [
    (json.dumps(body).encode(), "1000 characters", where, "context_length_exceeded")
    for body, where in [
        ({"prompt": LONG}, "prompt"),
        ({"prompt": ["a", LONG]}, "prompt[1]"),
        ({"input": LONG}, "input"),
        ({"instructions": LONG}, "instructions"),
        ({"messages": [{"role": "user", "content": LONG}]}, "messages[0].content"),
        (
            {"messages": [{"role": "tool", "content": ["a", {"text": LONG}]}]},
            "messages[0].content[1]",
        ),
        ({"system": [{"type": "text", "text": LONG}]}, "system[0].text"),
        ({"input": [{"type": "function_call_output", "output": LONG}]}, "input[0].output"),
    ]
]


def test_what_cannot_be_used_is_refused_where_it_stands() -> None:
    async def work(process: TextProcess) -> None:
        for data, what, where, code in FAULTS:
            with pytest.raises(RequestError, match=what) as caught:
                await process.parse(data, is_bounded=True)
            assert caught.value.code == code, data[:50]
            if where is not None:
                assert caught.value.where == where

    run(work)


@pytest.mark.parametrize(
    "body",
    [
        {"user": LONG, "metadata": {"a": LONG}},
        {"messages": [{"role": "assistant", "content": LONG}]},
        {"messages": [{"role": "user", "content": "hi", "reasoning_content": LONG}]},
        {"messages": [{"role": "user", "content": LONG}], "truncate_prompt_tokens": -1},
        {"prompt": "x" * CONTEXT},
    ],
)
def test_what_may_still_fit_is_not_refused(body: Any) -> None:
    async def work(process: TextProcess) -> None:
        assert await process.parse(json.dumps(body).encode(), is_bounded=True) == body

    run(work)


def test_where_any_length_is_taken_nothing_is_refused() -> None:
    async def work(process: TextProcess) -> None:
        body = {"prompt": LONG}
        assert await process.parse(json.dumps(body).encode(), is_bounded=False) == body

    run(work)


def test_a_truncated_prompt_is_cut_before_it_is_sent_back() -> None:
    text = "".join(map(chr, range(97, 123))) * 4000

    async def work(process: TextProcess) -> None:
        for keep in (5, CONTEXT, -1):
            body = {"prompt": text, "truncate_prompt_tokens": keep}
            got = await process.parse(json.dumps(body).encode(), is_bounded=True)
            assert text.endswith(got["prompt"])
            assert (keep if keep > 0 else CONTEXT) < len(got["prompt"]) < 5 * CONTEXT
            body |= {"prompt": text, "truncation_side": "right"}
            got = await process.parse(json.dumps(body).encode(), is_bounded=True)
            assert text.startswith(got["prompt"])
            assert (keep if keep > 0 else CONTEXT) < len(got["prompt"]) < 5 * CONTEXT

    run(work)


def test_tokens_are_those_of_the_tokenizer() -> None:
    spec = bounded_spec()
    tokenizer = load_tokenizer(spec)
    text = "the quick \u00e9 " * 20_000

    async def work(process: TextProcess) -> None:
        ids = await process.encode(text, add_special_tokens=True, max_tokens=None, keep=None)
        assert list(ids) == tokenizer.encode(text)
        tail = await process.encode(text, add_special_tokens=True, max_tokens=CONTEXT, keep=7)
        assert list(tail)[-7:] == tokenizer.encode(text)[-7:]
        assert len(tail) < 100
        shown = await process.describe(text, add_special_tokens=False, shows_texts=True)
        plain = tokenizer.encode(text, add_special_tokens=False)
        assert json.loads(shown.ids) == plain
        assert shown.num_tokens == len(plain)
        assert shown.texts is not None
        assert json.loads(shown.texts) == tokenizer.tokens(plain)
        empty = await process.describe("", add_special_tokens=False, shows_texts=True)
        assert (empty.ids, empty.texts) == (b"[]", b"[]")
        with pytest.raises(RequestError, match="characters") as caught:
            await process.encode(text, add_special_tokens=True, max_tokens=CONTEXT, keep=None)
        assert caught.value.code == "context_length_exceeded"

    run(work)


def test_the_process_ends_when_it_is_idle_and_starts_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(text_process, "IDLE_S", 0.1)

    async def work(process: TextProcess) -> None:
        assert process.pids == []
        await process.parse(b"{}", is_bounded=False)
        (pid,) = process.pids
        deadline_s = time.monotonic() + 20
        while process.pids or psutil.pid_exists(pid):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.02)
        assert await process.parse(b"[1]", is_bounded=False) == [1]

    run(work)


def test_a_process_that_dies_fails_its_text_alone() -> None:
    async def work(process: TextProcess) -> None:
        await process.parse(b"{}", is_bounded=False)
        (pid,) = process.pids
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.ensure_future(process.parse(b"[2]", is_bounded=False))
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RequestError, match="ended") as caught:
            await waiting
        assert caught.value.status == 500
        assert await process.parse(b"[3]", is_bounded=False) == [3]

    run(work)


def test_whoever_waits_at_the_end_is_told() -> None:
    async def main() -> list[Any]:
        async with running() as process:
            await process.parse(b"{}", is_bounded=False)
            os.kill(process.pids[0], signal.SIGSTOP)
            tasks = [
                asyncio.ensure_future(process.parse(b"[1]", is_bounded=False)) for _ in range(3)
            ]
            await asyncio.sleep(0.05)
        return await asyncio.gather(*tasks, return_exceptions=True)

    got = asyncio.run(main())
    assert [type(error) for error in got] == [Overloaded] * 3


def test_a_client_that_leaves_disturbs_nobody() -> None:
    async def work(process: TextProcess) -> None:
        tasks = [
            asyncio.ensure_future(process.parse(b"[%d]" % i, is_bounded=False)) for i in range(6)
        ]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        got = await asyncio.gather(*tasks, return_exceptions=True)
        assert got[1::2] == [[1], [3], [5]]
        assert all(isinstance(found, asyncio.CancelledError) for found in got[::2])

    run(work)


def test_a_process_that_cannot_be_reached_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(**how: Any) -> None:
        raise OSError("too many open files")

    async def work(process: TextProcess) -> None:
        monkeypatch.setattr(asyncio, "open_unix_connection", fail)
        with pytest.raises(RequestError, match="ended or does not respond"):
            await process.parse(b"{}", is_bounded=False)
        assert process.pids == []
        assert [child.pid for child in psutil.Process().children()] == before
        monkeypatch.undo()
        assert await process.parse(b"{}", is_bounded=False) == {}

    before = [child.pid for child in psutil.Process().children()]
    run(work)


def test_a_huge_text_is_not_read_on_for_nobody() -> None:
    async def work(process: TextProcess) -> None:
        await process.parse(b'"' + b"x" * (2 << 20) + b'"', is_bounded=False)
        (pid,) = process.pids
        data = json.dumps([1] * (2 << 20)).encode()
        task = asyncio.ensure_future(process.parse(data, is_bounded=False))
        await asyncio.sleep(0.05)
        task.cancel()
        deadline_s = time.monotonic() + 20
        while psutil.pid_exists(pid):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.02)
        again = await process.parse(b'"' + b"y" * (2 << 20) + b'"', is_bounded=False)
        assert again == "y" * (2 << 20)

    run(work, busy=True)


def test_short_texts_go_first_and_huge_ones_wait_elsewhere() -> None:
    sizes = {"huge": 3 << 20, "long": 200_000, "short": 1000}
    done: list[str] = []

    async def work(process: TextProcess) -> None:
        async def parse(name: str) -> None:
            await process.parse(json.dumps("x" * sizes[name]).encode(), is_bounded=False)
            done.append(name)

        await process.parse(b"{}", is_bounded=False)
        first = asyncio.ensure_future(parse("long"))
        await asyncio.sleep(0)
        await asyncio.gather(first, *(parse(name) for name in ("huge", "long", "short")))
        assert len(process.pids) == 2

    run(work)
    # The first of the long ones had begun when the short one came.
    assert [name for name in done if name != "huge"] == ["long", "short", "long"]


def test_the_loop_runs_on_while_a_huge_body_is_read() -> None:
    data = json.dumps({"prompt": "line\n" * 2_000_000, "values": [1] * 500_000}).encode()

    async def work(process: TextProcess) -> float:
        await process.parse(b'"' + b"x" * (2 << 20) + b'"', is_bounded=True)  # it has started
        task = asyncio.ensure_future(process.parse(data, is_bounded=True))
        longest_s, last_s = 0.0, time.perf_counter()
        while not task.done():
            await asyncio.sleep(0.001)
            now_s = time.perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
        assert isinstance(task.exception(), RequestError)
        return longest_s

    started_s = time.perf_counter()
    json.loads(data)
    inline_s = time.perf_counter() - started_s
    assert run(work) < max(0.5 * inline_s, 0.03)


@pytest.mark.parametrize("num_idle", [0, 1, 3])
def test_a_huge_text_rests_as_long_as_others_generate(
    num_idle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may have begun when nothing was generated: what counts is what is so now.
    monkeypatch.setattr(text_process, "REST_FACTOR", 1e9)
    looks: list[bool] = []
    others = {"generate": True}

    def is_busy() -> bool:
        looks.append(others["generate"] and len(looks) >= num_idle)
        return looks[-1]

    async def main() -> None:
        process = TextProcess(bounded_spec(), is_busy)
        try:
            task = asyncio.ensure_future(
                process.parse(json.dumps([0] * (1 << 19)).encode(), is_bounded=False)
            )
            while len(looks) < num_idle + 2:
                await asyncio.sleep(0.01)
            assert not task.done()
            others["generate"] = False
            assert await task == [0] * (1 << 19)
        finally:
            await process.close()

    asyncio.run(main())
    assert looks[: num_idle + 2] == [False] * num_idle + [True, True]


class Counting(ByteTokenizer):
    """Notes how much it was given."""

    num_chars = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        Counting.num_chars += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_a_text_is_refused_after_its_first_pieces() -> None:
    tokenizer = Counting(None, "")
    text = "word " * 1_000_000
    with pytest.raises(RequestError, match="more than") as caught:
        long_text.encoded(tokenizer, text, add_special_tokens=True, max_tokens=CONTEXT)
    assert caught.value.code == "context_length_exceeded"
    assert Counting.num_chars <= 2 * long_text.PIECE_CHARS


def test_the_end_of_a_text_is_tokenized_alone() -> None:
    tokenizer = Counting(None, "")
    Counting.num_chars = 0
    text = "".join(f"word{i} " for i in range(200_000))
    ids = long_text.encoded(tokenizer, text, add_special_tokens=True, max_tokens=CONTEXT, keep=50)
    assert list(ids) == tokenizer.encode(text[-1000:])[-50:]
    assert Counting.num_chars < 20_000


def test_the_start_of_a_text_is_tokenized_alone() -> None:
    tokenizer = Counting(None, "")
    Counting.num_chars = 0
    text = "".join(f"word{i} " for i in range(200_000))
    ids = long_text.encoded(
        tokenizer, text, add_special_tokens=True, max_tokens=CONTEXT, keep=50, keeps_start=True
    )
    assert list(ids) == tokenizer.encode(text[:1000])[:50]
    assert Counting.num_chars < 20_000


def test_a_text_that_comes_as_the_process_is_given_up_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_process, "IDLE_S", 0.2)

    async def work(process: TextProcess) -> None:
        await process.describe("ab", add_special_tokens=False, shows_texts=False)
        lane = process._lane(b"ab")
        job = text_process.Describe(num_bytes=2, add_special_tokens=False, shows_texts=False)
        asked = lane.run(job, b"ab")
        loop = asyncio.get_running_loop()
        loop.call_later(0.21, lambda: asked.send(None))  # in the turn in which the limit passes
        loop.call_soon(time.sleep, 0.3)
        async with asyncio.timeout(20):
            while not (waiting := lane._waiting):
                await asyncio.sleep(0)
            while waiting:
                await asyncio.sleep(0.02)
        asked.close()

    run(work)
