"""Compiling is bounded: in time by a kill, in memory, in what waits; nothing is left running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.rules.selections import select
from dovetail.errors import Overloaded, RequestError
from dovetail.interfaces.data.constraint import (
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    encode_constraint,
)
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output import compile_worker
from dovetail.structured_output import compiler as compiler_module
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.compile_worker import WALL_FACTOR
from dovetail.structured_output.compiler import ConstraintCompiler
from dovetail.structured_output.select_backend import select_backend
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer
from support.hostile_constraints import HOSTILE
from support.inside import backends_of, process_of, turn_of

pytest.importorskip("dovetail_plugins")

WORST = ("twentieth from the end", "laughs", "required members", "itself by two", "list of itself")
"""Those asked of every backend here; benchmarks/constraint_bounds.py asks all of all."""
NAMES = ("guidance", "lm-format-enforcer", "outlines", "xgrammar")
LIMIT_S = 1.0
SLACK_S = 1.5
"""Machines that run tests are loaded; benchmarks/constraint_bounds.py measures against 0.5 s."""


def spec_of(*names: str, limit_s: float = LIMIT_S) -> StructuredOutputSpec:
    """Return a spec over the demo model's vocabulary."""
    for name in names:
        with skipping_unavailable():
            registry.load("structured_output_backend", name)
    return StructuredOutputSpec(
        tokenizer=select("tokenizer", "hf"),
        tokenizer_path=str(DEMO_PATH),
        eos_ids=(2041,),
        vocab_size=2048,
        backends=tuple(select("structured_output_backend", name) for name in names),
        compile_limit_s=limit_s,
        compile_memory_bytes=1 << 30,
    )


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No child of this process outlives a test."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    assert left == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hostile_constraints_cost_their_request_and_the_limit(name: str) -> None:
    async def body() -> dict[str, str]:
        compiler = ConstraintCompiler(spec_of(name))
        found = {}
        await compiler.compile(Literal("x"), where="f")
        for word in HOSTILE if name == "guidance" else WORST:
            constraint = HOSTILE[word]
            await compiler.compile(Literal("x" + word), where="f")  # the next process is ready
            begun_s = time.monotonic()
            try:
                compiled = await compiler.compile(constraint, where="f", backend=name)
                found[word] = f"{len(compiled.artifact)} bytes"
            except RequestError as error:
                assert error.status in (400, 503)  # 503: a busy machine gave it no processor
                found[word] = str(error.code)
            assert time.monotonic() - begun_s < WALL_FACTOR * LIMIT_S + SLACK_S, word
        await compiler.close()
        return found

    found = asyncio.run(body())
    assert found["itself by two"] in ("invalid_grammar", "grammar_too_complex")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hostile_constraints_that_compile_do_not_hold_up_an_answer(name: str) -> None:
    async def artifacts() -> dict[str, Any]:
        compiler = ConstraintCompiler(spec_of(name, limit_s=0.4))
        made = {}
        for word in WORST:
            try:
                made[word] = await compiler.compile(HOSTILE[word], where="f", backend=name)
            except RequestError:
                continue
        await compiler.close()
        return made

    table = ConstraintCache(spec_of(name))
    table.backend(name)  # its start is no answer's
    for word, compiled in asyncio.run(artifacts()).items():
        begun_s = time.process_time()
        matcher = table.prepare(compiled).constraints[0].matcher()
        chance = random.Random(0)
        for _ in range(6):
            mask = np.zeros(table.vocabulary.mask_words, dtype=np.uint32)
            try:
                matcher.fill(mask)
            except Exception:
                break  # it costs this answer
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            ids = [int(i) for i in np.flatnonzero(bits) if i not in table.vocabulary.eos_ids]
            if not ids or not matcher.accept(chance.choice(ids)):
                break
        assert time.process_time() - begun_s < 3.0, word


def test_a_constraint_that_took_too_long_is_refused_at_once_the_next_time() -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("outlines", limit_s=0.3))
        constraint = HOSTILE["twentieth from the end"]
        for most_s in (60.0, 0.05):
            begun_s = time.monotonic()
            with pytest.raises(RequestError, match=r"took more than 0\.3 s") as caught:
                await compiler.compile(constraint, where="f")
            assert caught.value.code == "grammar_too_complex"
            assert time.monotonic() - begun_s < most_s
        await compiler.compile(Regex("[ab]"), where="f")  # the next one works
        await compiler.close()

    asyncio.run(body())


def test_a_refusal_for_time_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("outlines", limit_s=0.3))
        lasting = compiler_module.REFUSED_FOR_S
        monkeypatch.setitem(lasting, "grammar_too_complex", 0.0)
        for _ in range(2):
            begun_s = time.monotonic()
            with pytest.raises(RequestError, match="took more"):
                await compiler.compile(HOSTILE["twentieth from the end"], where="f")
            assert time.monotonic() - begun_s > 0.2, "it was tried again"
        await compiler.close()

    asyncio.run(body())


class Waits:
    """A cache whose backend takes its time, with or without the processor."""

    def __init__(self, *, is_busy: bool) -> None:
        self.spec = spec_of("guidance", limit_s=0.3)
        self._is_busy = is_busy

    def backend(self, name: str) -> Any:
        until_s = time.monotonic() + 1.0
        while self._is_busy or time.monotonic() < until_s:
            if not self._is_busy:
                time.sleep(0.05)
        raise InvalidConstraint("it was read")


@pytest.mark.parametrize(
    ("is_busy", "factor", "said"),
    [
        (False, 20.0, "it was read"),
        (False, 1.5, "the machine is busy"),
        (True, 20.0, "took more than 0.3 s of processor time"),
    ],
)
def test_the_limit_counts_processor_time(
    is_busy: bool, factor: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_worker, "WALL_FACTOR", factor)
    table: Any = Waits(is_busy=is_busy)
    trial: Any = None
    job = compile_worker.CompileJob(backend="x", constraint=encode_constraint(Literal("x")))
    found = compile_worker._in_child(table, trial, job)
    assert said in str(found.fault)
    assert (found.is_too_complex, found.is_starved) == (is_busy, "busy" in said)


def test_who_was_starved_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance"))
        await compiler.compile(Literal("x"), where="f")
        real = compiler_module._run

        async def starved(worker: Any, job: Any) -> Any:
            return compile_worker.CompileResult(fault="took", is_starved=True)

        monkeypatch.setattr(compiler_module, "_run", starved)
        with pytest.raises(Overloaded):
            await compiler.compile(Literal("y"), where="f")
        monkeypatch.setattr(compiler_module, "_run", real)
        assert (await compiler.compile(Literal("y"), where="f")).artifact
        await compiler.close()

    asyncio.run(body())


def test_the_start_counts_against_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance"))
        real = compiler_module.ChildChannel.open

        async def slow(module: str, spec: StructuredOutputSpec) -> Any:
            await asyncio.sleep(1.5)
            return await real(module, spec)

        monkeypatch.setattr(compiler_module.ChildChannel, "open", slow)
        monkeypatch.setattr(compiler_module, "MAX_WAIT_S", 1.0)
        made = [compiler.compile(Literal(text), where="f") for text in "abc"]
        assert all(one.artifact for one in await asyncio.gather(*made))
        await compiler.close()

    asyncio.run(body())


def test_it_is_prepared_before_the_first_request_and_at_ordinary_priority() -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance"))
        compiler.start()
        async with asyncio.timeout(60):
            while "guidance" not in compiler._ready:
                await asyncio.sleep(0.01)
        assert psutil.Process(process_of(compiler).pid).nice() == psutil.Process().nice()
        await compiler.close()

    asyncio.run(body())


def test_the_engine_prepares_the_vocabulary_on_a_thread_of_its_own() -> None:
    table = ConstraintCache(spec_of("guidance", "outlines"))
    table.start()
    deadline_s = time.monotonic() + 60.0
    while "guidance" not in backends_of(table):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert set(backends_of(table)) == {"guidance"}
    threads: list[str] = []
    real = registry.make

    def noted(selection: Any, *given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(selection, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "make", noted)
        table.backend("outlines")
    assert threads[0].startswith("dovetail-vocabulary")


def test_a_step_does_not_wait_while_a_backend_is_constructed() -> None:
    table = ConstraintCache(spec_of("guidance"))
    table.start()
    first = table.backend("guidance").vocabulary  # type: ignore[attr-defined]
    with table._building:
        found: list[Any] = []
        step = threading.Thread(target=lambda: found.append(table.vocabulary))
        step.start()
        step.join(5.0)
        assert found == [first]


HALF = "\ud800"


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema({"enum": [HALF]}), JsonSchema({"properties": {HALF: {}}}), Regex(HALF),
        Literal(HALF), Grammar(f'root ::= "{HALF}"'), Choice((Literal("a"), Literal(HALF))),
    ],
    ids=lambda c: type(c).__name__,
)  # fmt: skip
def test_half_of_a_surrogate_pair_is_refused(constraint: Constraint) -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance"))
        for made in (
            compiler.compile(constraint, where="f"),
            compiler.triggered([("<a>", constraint)], where="f"),
            compiler.triggered([(HALF, Literal("a"))], where="f"),
        ):
            with pytest.raises(RequestError, match="surrogate") as caught:
                await made
            assert caught.value.status == 400
        await compiler.close()

    asyncio.run(body())


def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance"))
        await compiler.compile(Literal("x"), where="f")
        await turn_of(compiler).acquire()
        monkeypatch.setattr(compiler_module, "MAX_WAIT_S", 0.05)
        with pytest.raises(Overloaded):
            await compiler.compile(Literal("y"), where="f")
        turn_of(compiler).release()
        await compiler.close()

    asyncio.run(body())


def test_every_backend_stays_ready_after_a_constraint_that_took_too_long() -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance", "outlines", limit_s=0.3))
        for name in ("guidance", "outlines"):
            await compiler.compile(Literal("x"), where="f", backend=name)
        pid = process_of(compiler).pid
        with pytest.raises(RequestError, match="took more"):
            await compiler.compile(HOSTILE["twentieth from the end"], where="f", backend="outlines")
        for name in ("guidance", "outlines"):
            await compiler.compile(Literal("y"), where="f", backend=name)
        assert process_of(compiler).pid == pid
        assert psutil.Process(pid).children() == []
        await compiler.close()

    asyncio.run(body())


def test_who_goes_away_leaves_its_constraint_to_the_next() -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance"))
        await compiler.compile(Literal("x"), where="f")
        gone = asyncio.ensure_future(compiler.compile(Literal("y"), where="f"))
        await asyncio.sleep(0)  # it has the turn
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        one, other = await asyncio.gather(
            compiler.compile(Literal("y"), where="f"), compiler.compile(Literal("z"), where="f")
        )
        assert one.key != other.key
        table = ConstraintCache(spec_of("guidance"))
        matcher = table.prepare(other).constraints[0].matcher()
        walk = Wanderer(table.vocabulary).walk(matcher, random.Random(0))
        assert Wanderer(table.vocabulary).written(walk.token_ids) == b"z"
        await compiler.close()

    asyncio.run(body())


def test_a_child_that_ends_costs_its_constraint() -> None:
    class Ends:
        def backend(self, name: str) -> Any:
            os._exit(3)

    table: Any = Ends()
    trial: Any = None
    table.spec = spec_of("guidance")
    answer = compile_worker._in_child(
        table,
        trial,
        compile_worker.CompileJob(backend="x", constraint=encode_constraint(Literal("x"))),
    )
    assert answer.is_too_complex
    assert "ended the process" in str(answer.fault)


def test_what_one_backend_cannot_compile_goes_to_the_next() -> None:
    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance", "xgrammar", limit_s=20.0))
        schema = {"oneOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "maximum": 3}]}
        both = [
            (await compiler.compile(JsonSchema(schema), where="f", backend=backend)).backend
            for backend in (None, "xgrammar")
        ]
        assert both[1] == "xgrammar"
        # Nobody can; the first refusal is told.
        with pytest.raises(RequestError):
            await compiler.compile(
                JsonSchema({"type": "string", "minLength": 3, "maxLength": 2}), where="f"
            )
        await compiler.close()

    asyncio.run(body())


@pytest.mark.parametrize("name", NAMES)
def test_members_come_in_the_order_of_the_schema(name: str) -> None:
    async def body() -> bytes:
        compiler = ConstraintCompiler(spec_of(name, limit_s=20.0))
        named = {word: {"type": "boolean"} for word in ("why", "answer", "more")}
        schema = {"type": "object", "properties": named, "required": list(named)}
        compiled = await compiler.compile(JsonSchema(schema, ""), where="f", backend=name)
        await compiler.close()
        table = ConstraintCache(spec_of(name))
        matcher = table.prepare(compiled).constraints[0].matcher()
        return Wanderer(table.vocabulary).written(
            Wanderer(table.vocabulary).walk(matcher, random.Random(0)).token_ids
        )

    assert list(json.loads(asyncio.run(body())))[:3] == ["why", "answer", "more"]


def test_a_request_chooses_among_the_servers_backends_alone() -> None:
    spec = spec_of("guidance")
    assert select_backend(spec, [Regex("a")], "guidance", "here") == "guidance"
    for wish in ("xgrammar", "outlines", "nothing"):
        with pytest.raises(RequestError, match="no structured-output backend"):
            select_backend(spec, [Regex("a")], wish, "here")


def test_a_refusal_points_at_what_is_not_enforced() -> None:
    part = {"type": "integer", "not": {"multipleOf": 3}}
    schema = {"type": "object", "properties": {"a/b": part}}
    for wish in (None, "guidance"):
        with pytest.raises(RequestError) as caught:
            select_backend(spec_of("guidance", "xgrammar"), [JsonSchema(schema)], wish, "here")
        assert caught.value.where == "here/properties/a~1b/not"


def test_schemas_are_rewritten_where_they_can_be_killed() -> None:
    """Work without an end ends the child at the limit, and the event loop goes on meanwhile."""
    names = [f"{'a' * (n % 7)}{n}" for n in range(400)]
    parts = [{"type": "string", "pattern": f"^(a|b)*{name}(c|d)*$"} for name in names]

    async def body() -> None:
        compiler = ConstraintCompiler(spec_of("guidance", limit_s=0.2))
        await compiler.compile(Literal("x"), where="f")
        begun_s = time.process_time()
        with pytest.raises(RequestError) as caught:
            await compiler.compile(JsonSchema({"oneOf": parts}), where="f")
        assert caught.value.status == 400
        assert caught.value.code == "grammar_too_complex"
        assert time.process_time() - begun_s < 0.2
        with pytest.raises(RequestError) as caught:
            await compiler.compile(JsonSchema({"properties": {"a": {"not": 3}}}), where="f")
        assert (caught.value.code, caught.value.where) == (
            "unsupported_schema",
            "f/properties/a/not",
        )
        schema = {"$id": "http://[", "type": "integer"}
        assert (await compiler.compile(JsonSchema(schema), where="f")).artifact
        await compiler.close()

    asyncio.run(body())
