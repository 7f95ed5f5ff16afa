"""The process that compiles constraints, as its parent sees it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec
import psutil
import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.rules.selections import select
from dovetail.interfaces.data.constraint import JsonSchema, Literal
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.structured_output.compiler import ConstraintCompiler
from support.impostors import make_impostors
from support.inside import num_in_line, process_of, turn_of
from support.orphans import kill_parent, survivors

pytest.importorskip("dovetail_plugins")


def spec() -> StructuredOutputSpec:
    """Return a spec over the demo model's vocabulary."""
    return StructuredOutputSpec(
        tokenizer=select("tokenizer", "hf"),
        tokenizer_path=str(DEMO_PATH),
        eos_ids=(2041,),
        vocab_size=2048,
        backends=(select("structured_output_backend", "guidance"),),
    )


def test_it_runs_no_code_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = make_impostors(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")

    async def body() -> None:
        compiler = ConstraintCompiler(spec())
        try:
            assert (await compiler.compile(Literal("x"), where="f")).artifact
        finally:
            await compiler.close()
            assert note.read_text() == ""

    asyncio.run(body())


PARENT = """
import asyncio, sys
import msgspec, psutil
from dovetail.structured_output.compiler import ConstraintCompiler
from dovetail.interfaces.data.constraint import JsonSchema, Literal
from dovetail.interfaces.data.spec import StructuredOutputSpec

SLOW = {"type": "object", "properties": {str(i): {"enum": list(range(i, 900))} for i in range(40)}}

async def main(spec):
    compiler = ConstraintCompiler(spec)
    await compiler.compile(Literal("x"), where="f")
    worker, jobs = psutil.Process(compiler._process.pid), []
    if sys.argv[2] == "busy":
        asyncio.ensure_future(compiler.compile(JsonSchema(SLOW), where="f"))
        while not (jobs := worker.children()):
            await asyncio.sleep(0)
    print(worker.pid, *[job.pid for job in jobs], flush=True)
    print("ready", file=sys.stderr, flush=True)
    await asyncio.sleep(60)

asyncio.run(main(msgspec.json.decode(sys.argv[1], type=StructuredOutputSpec)))
"""


@pytest.mark.parametrize("stage", ["idle", "busy"])
def test_it_ends_within_a_second_of_its_parent(stage: str) -> None:
    text = msgspec.json.encode(spec()).decode()
    children = kill_parent(PARENT, text, stage, ready="ready")
    assert len(children) == (2 if stage == "busy" else 1)
    assert survivors(children, 1.0) == []


def test_callers_that_leave_while_they_wait_leave_no_place_taken() -> None:
    """The turn is free in the same moment as a caller leaves: Python 3.11's wait_for gives it to
    nobody then."""

    async def body() -> None:
        compiler = ConstraintCompiler(spec())
        try:
            await compiler.compile(Literal("warm"), where="f")
            for which in range(20):
                await turn_of(compiler).acquire()
                work = compiler.compile(Literal(f"x{which}"), where="f")
                task = asyncio.ensure_future(work)
                while not turn_of(compiler)._waiters:  # type: ignore[attr-defined]
                    await asyncio.sleep(0.001)
                turn_of(compiler).release()
                for _ in range(which % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert num_in_line(compiler) == 0 and task.cancelled()
            async with asyncio.timeout(20):
                assert (await compiler.compile(Literal("last"), where="f")).artifact
        finally:
            await compiler.close()

    asyncio.run(body())


def test_a_constraint_is_compiled_at_the_priority_of_its_server() -> None:
    """A lower one lets clients with a schema wait for minutes on a busy machine."""
    properties = {str(i): {"enum": list(range(i, 900))} for i in range(40)}

    async def body() -> None:
        compiler = ConstraintCompiler(spec())
        try:
            await compiler.compile(Literal("x"), where="f")
            worker = psutil.Process(process_of(compiler).pid)
            schema = JsonSchema({"type": "object", "properties": properties})
            task = asyncio.ensure_future(compiler.compile(schema, where="f"))
            found: list[int] = []
            while not found and not task.done():
                await asyncio.sleep(0)
                for child in worker.children():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        found.append(child.nice())
            await asyncio.wait([task])
            assert found
            assert set(found) == {psutil.Process().nice()}
        finally:
            await compiler.close()

    asyncio.run(body())
