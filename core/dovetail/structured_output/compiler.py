"""ConstraintCompiler: turns constraints into CompiledConstraints, or into errors with a reason,
within a time limit.

Compiling runs in a separate process (compile_worker), which limits time and memory per constraint.
It is started with the server, or on first use. Artifacts are cached, bounded in bytes; equal
constraints that arrive together are compiled once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import Overloaded, RequestError
from dovetail.interfaces.data.constraint import (
    Constraint,
    Literal,
    decode_constraint,
    encode_constraint,
)
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.structured_output import AnswerConstraint, TriggeredConstraints
from dovetail.processes.child_channel import ChildChannel
from dovetail.structured_output.cache import constraint_key
from dovetail.structured_output.compile_worker import WALL_FACTOR, CompileJob, CompileResult
from dovetail.structured_output.schemas import has_schema
from dovetail.structured_output.select_backend import (
    check_backend,
    first_backend,
    none_installed,
    select_backends,
)

logger = logging.getLogger(__name__)

WORKER = "dovetail.structured_output.compile_worker"
START_LIMIT_S = 600.0
"""A large vocabulary on a busy machine may take minutes, which is no request's fault."""
SLACK_S = 10.0
"""The process enforces its own limits; this much later it is considered stuck."""
MAX_CONSTRAINT_BYTES = 512 << 10
SHORT_CONSTRAINT_BYTES = 16 << 10
MAX_WAITING = 64
"""Maximum number of constraints waiting to be compiled; beyond it requests are rejected."""
MAX_WAIT_S = 45.0
MAX_REFUSED = 256
MAX_REWRITTEN = 64
"""Number of constraints whose rewritten form is cached."""
REFUSED_FOR_S = {"grammar_too_complex": 120.0}
"""How long a refusal is cached, by its code, since limits may be met next time. Others forever."""


class ConstraintCompiler:
    """One per application. Must be closed."""

    def __init__(self, spec: StructuredOutputSpec) -> None:
        self.spec = spec
        self._process: ChildChannel | None = None
        self._ready: set[str] = set()
        self._turn = asyncio.Lock()
        self._task: asyncio.Future[bytes] | None = None
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._refused: OrderedDict[tuple[str, bytes], _Refusal] = OrderedDict()
        self._num_waiting = 0
        self._artifacts: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._num_bytes = 0
        self._rewritten: OrderedDict[bytes, Constraint] = OrderedDict()

    def start(self) -> None:
        """Start the process and load the most used backend, in the background."""
        self._prepared(first_backend(self.spec))

    async def compile(
        self,
        constraint: Constraint,
        *,
        where: str,
        backend: str | None = None,
        starts_after: str = "",
        closes: bool = False,
    ) -> AnswerConstraint:
        """Return a compiled constraint of the whole answer, or of what follows `starts_after`.

        `closes`: near max_tokens only tokens that lead to the end are allowed. `where` is the
        request's field, for errors. Raises: RequestError, Overloaded
        """
        name, (artifact,) = await self._chosen([constraint], backend, where)
        return AnswerConstraint(
            backend=name,
            key=constraint_key(name, artifact, starts_after.encode(), str(closes)),
            artifact=artifact,
            starts_after=starts_after,
            closes=closes,
        )

    async def triggered(
        self,
        parts: Sequence[tuple[str, Constraint]],
        *,
        where: str,
        backend: str | None = None,
        reasoning_markers: tuple[str, ...] = (),
        starts_in_reasoning: bool = False,
        closes: bool = False,
    ) -> TriggeredConstraints:
        """Return compiled constraints within free text: each applies after its trigger, but not
        inside the reasoning section. `closes` as in `compile`.

        Raises: RequestError, Overloaded
        """
        constraints = [constraint for _, constraint in parts]
        for trigger, _ in parts:
            _written(Literal(trigger), where)
        name, artifacts = await self._chosen(constraints, backend, where)
        triggers = tuple(text for text, _ in parts)
        texts = (*triggers, *reasoning_markers, str(starts_in_reasoning), str(closes))
        return TriggeredConstraints(
            backend=name,
            key=constraint_key(name, *artifacts, *(text.encode() for text in texts)),
            triggers=triggers,
            artifacts=artifacts,
            reasoning_markers=reasoning_markers,
            starts_in_reasoning=starts_in_reasoning,
            closes=closes,
        )

    async def _chosen(
        self, constraints: Sequence[Constraint], backend: str | None, where: str
    ) -> tuple[str, tuple[bytes, ...]]:
        """Return the first backend that can enforce these constraints, and its artifacts.

        If only compiling finds a fault (for example two patterns that exclude each other), the next
        backend is tried. Raises: the first backend's RequestError
        """
        first: RequestError | None = None
        if not self.spec.backends:
            raise none_installed(where)
        preferred = backend or self.spec.backend
        check_backend(self.spec, preferred, where)
        first_choice = first_backend(self.spec) if preferred == "auto" else preferred
        constraints = [await self._read(one, first_choice, where) for one in constraints]
        written = [encode_constraint(constraint) for constraint in constraints]
        names = select_backends(self.spec, constraints, backend, where)
        while (name := await _next(names, sum(map(len, written)))) is not None:
            try:
                return name, tuple([await self._artifact(name, data, where) for data in written])
            except RequestError as error:
                first = first or error
                if error.code != "invalid_grammar":
                    break
        assert first is not None
        raise first

    async def _read(self, constraint: Constraint, backend: str, where: str) -> Constraint:
        """Return a constraint in the form for backends. Rewriting may take long, so the process
        does it, and also compiles for the first backend. Raises: RequestError, Overloaded"""
        data = _written(constraint, where)
        if not has_schema(constraint):
            return constraint
        if data not in self._rewritten:
            await self._in_turn(CompileJob(backend=backend, constraint=data, is_given=True), where)
        self._rewritten.move_to_end(data)
        return self._rewritten[data]

    async def close(self) -> None:
        """Stop the process, even if busy."""
        tasks: list[asyncio.Future[Any]] = [*self._preparing.values()]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._kill()

    async def _artifact(self, backend: str, data: bytes, where: str) -> bytes:
        return await self._in_turn(CompileJob(backend=backend, constraint=data), where)

    async def _in_turn(self, job: CompileJob, where: str) -> bytes:
        """Run a job when its turn has come; return its result. Raises: RequestError, Overloaded"""
        backend = job.backend
        self._check_refused((backend, job.constraint))  # fail before waiting
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded("too many constraints wait to be compiled.")
        self._num_waiting += 1
        try:
            if backend not in self._ready:
                await asyncio.shield(self._prepared(backend))
            async with asyncio.timeout(MAX_WAIT_S):
                await self._turn.acquire()
        except TimeoutError as error:
            raise Overloaded("constraints before this one take too long to compile.") from error
        finally:
            self._num_waiting -= 1
        # If the caller is cancelled, this task still completes its turn: otherwise an unread result
        # would be taken for that of the next constraint.
        self._task = asyncio.ensure_future(self._with_turn(job, where))
        self._task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._task)

    def _prepared(self, backend: str) -> asyncio.Task[None]:
        """Return the task that prepares the process for this backend, shared by all callers."""
        if backend not in self._preparing:
            task = asyncio.ensure_future(self._prepare(backend))
            self._preparing[backend] = task
            task.add_done_callback(lambda done: self._note_prepared(backend, done))
        return self._preparing[backend]

    async def _prepare(self, backend: str) -> None:
        async with self._turn:
            await self._started(backend)

    def _note_prepared(self, backend: str, task: asyncio.Task[None]) -> None:
        del self._preparing[backend]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("structured output with %s: %s", backend, error)

    async def _with_turn(self, job: CompileJob, where: str) -> bytes:
        """Return an artifact, cached or compiled, and release the turn."""
        key = (job.backend, job.constraint)
        try:
            self._check_refused(key)
            if job.is_given:
                if job.constraint not in self._rewritten:
                    self._note_read(job, await self._compiled(job, where))
                return b""
            if key not in self._artifacts:
                self._keep(key, (await self._compiled(job, where)).artifact)
            self._artifacts.move_to_end(key)
            return self._artifacts[key]
        finally:
            self._turn.release()

    def _note_read(self, job: CompileJob, result: CompileResult) -> None:
        """Cache a rewritten constraint, and its artifact if there is one. Mutates: self"""
        self._rewritten[job.constraint] = decode_constraint(result.rewritten)
        while len(self._rewritten) > MAX_REWRITTEN:
            self._rewritten.popitem(last=False)
        if result.artifact:
            self._keep((job.backend, result.rewritten), result.artifact)

    def _check_refused(self, key: tuple[str, bytes]) -> None:
        """Raise the cached RequestError of a recently refused constraint, to save the time."""
        refusal = self._refused.get(key)
        if refusal is None:
            return
        if time.monotonic() < refusal.until_s:
            raise refusal.error
        del self._refused[key]

    def _remember(self, key: tuple[str, bytes], error: RequestError) -> None:
        """Cache why a constraint cannot be compiled. Mutates: self"""
        until_s = time.monotonic() + REFUSED_FOR_S.get(str(error.code), float("inf"))
        self._refused[key] = _Refusal(error, until_s)
        while len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    def _keep(self, key: tuple[str, bytes], artifact: bytes) -> None:
        self._artifacts[key] = artifact
        self._num_bytes += len(key[1]) + len(artifact)
        while self._num_bytes > self.spec.cache_bytes and len(self._artifacts) > 1:
            old_key, old = self._artifacts.popitem(last=False)
            self._num_bytes -= len(old_key[1]) + len(old)

    async def _compiled(self, job: CompileJob, where: str) -> CompileResult:
        """Return the result. Raises: RequestError, also if it takes too long; Overloaded"""
        process = await self._started(job.backend)
        try:
            limit_s = WALL_FACTOR * self.spec.compile_limit_s + SLACK_S
            async with asyncio.timeout(limit_s):
                result = await _run(process, job)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            await self._kill()
            what = "the process that compiles constraints ended or does not respond."
            raise RequestError(what, status=500) from error
        if result.fault is None:
            return result
        if result.is_starved:
            raise Overloaded(f"the constraint {result.fault}.")
        refusal = _refusal(result, where)
        self._remember((job.backend, job.constraint), refusal)
        raise refusal

    async def _started(self, backend: str) -> ChildChannel:
        """Return the process with this backend loaded, starting it if needed. Only for the holder
        of the turn.

        This does not count towards the compile limit, since a vocabulary may take seconds.
        """
        if self._process is not None and self._process.has_ended:
            await self._kill()
        if self._process is None:
            self._process = await ChildChannel.open(WORKER, self.spec)
            vocabulary_read = self._process.receive(CompileResult)
            await self._until_ready(vocabulary_read)
        if backend not in self._ready:
            await self._until_ready(
                _run(self._process, CompileJob(backend=backend, constraint=b""))
            )
            self._ready.add(backend)
        return self._process

    async def _until_ready(self, pending: Coroutine[Any, Any, CompileResult]) -> None:
        """Wait for the result of the start-up or of loading a backend. Raises: RequestError"""
        try:
            async with asyncio.timeout(START_LIMIT_S):
                result = await pending
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            await self._kill()
            what = "the process that compiles constraints could not be started."
            raise RequestError(what, status=500) from error
        if result.fault is not None:
            raise RequestError(f"the backend could not be loaded: {result.fault}", status=500)

    async def _kill(self) -> None:
        worker, self._process = self._process, None
        self._ready.clear()
        if worker is not None:
            await worker.close()


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a constraint was refused, and until when the refusal is cached."""

    error: RequestError
    until_s: float


async def _run(worker: ChildChannel, job: CompileJob) -> CompileResult:
    """Return a job's result. Raises: IncompleteReadError, OSError if the process ends"""
    await worker.send(job)
    return await worker.receive(CompileResult)


def _refusal(result: CompileResult, where: str) -> RequestError:
    """Return the sender's error for a constraint that was not compiled."""
    assert result.fault is not None
    if result.is_too_complex:
        return RequestError(
            result.fault,
            where=where,
            fix="make the constraint smaller or less nested.",
            code="grammar_too_complex",
        )
    return RequestError(result.fault, where=f"{where}{result.pointer}", code=result.code)


def _written(constraint: Constraint, where: str) -> bytes:
    """Return a constraint as bytes. Raises: RequestError if too long, too deep, or not Unicode"""
    try:
        data = encode_constraint(constraint)
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        what = f"contains \\u{ord(half):04x}, half of a surrogate pair, which is not a character."
        raise RequestError(what, where=where, code="invalid_grammar") from error
    except RecursionError as error:
        raise RequestError(
            "is nested too deep.",
            where=where,
            fix="make the constraint less nested.",
            code="grammar_too_complex",
        ) from error
    if len(data) > MAX_CONSTRAINT_BYTES:
        what = f"has {len(data)} bytes; at most {MAX_CONSTRAINT_BYTES} are allowed."
        raise RequestError(what, where=where, code="grammar_too_complex")
    return data


async def _next(names: Iterator[str], num_bytes: int) -> str | None:
    """Return the next name, or None. A long constraint is checked outside the event loop."""
    if num_bytes <= SHORT_CONSTRAINT_BYTES:
        return next(names, None)
    return await asyncio.get_running_loop().run_in_executor(None, next, names, None)
