"""A whole fake engine: executor, scheduler, policy and byte tokenizer in plain Python.

`fake_spec()` gives an EngineSpec that runs without weights, torch or the built-in plugins. Tokens
are bytes; the "model" continues with a script, or with letters that depend on everything before.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.engine.kv import prefix_hash
from dovetail.errors import ConfigError, EngineDead, RequestError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import CacheSpec, EngineSpec, ModelSpec, RunSpec, Selection
from dovetail.interfaces.data.step import (
    CachedLayer,
    KVLayer,
    KVLayout,
    NewRow,
    RowResult,
    RowStep,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from dovetail.interfaces.executor import Executor, PendingStep, WorkerCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import Reads, Renderer, RendererFacts, RendererInput
from dovetail.interfaces.tokenizer import Tokenizer, TokenStream
from dovetail_testing.fakes.scheduler import FakePolicy, FakeScheduler

EOS = 256
BOS = 257
VOCAB_SIZE = 258


@dataclass(slots=True, kw_only=True)
class FakeFacts:
    """The facts of the byte tokenizer."""

    vocab_size: int = VOCAB_SIZE
    bos_token_id: int | None = BOS
    eos_token_id: int | None = EOS
    special_tokens: dict[str, str] = field(
        default_factory=lambda: {"eos_token": "<eos>", "bos_token": "<bos>"}
    )
    special_ids: frozenset[int] = frozenset((EOS, BOS))
    special_texts: dict[int, str] = field(default_factory=dict)
    chat_template: str | None = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    chat_templates: dict[str, str] = field(default_factory=dict)
    max_tokens: int | None = None


class ByteStream:
    """Bytes to text, character by character."""

    def __init__(self, *, skips_special: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._skips_special = skips_special

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        if token_id < EOS:
            return self._decoder.decode(bytes((token_id,)))
        return "" if self._skips_special else self.flush() + _special_text(token_id)

    def flush(self) -> str:
        """Return the buffered text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def _special_text(token_id: int) -> str:
    return "<eos>" if token_id == EOS else "<bos>"


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte, no special tokens added."""

    info = Info(summary="test tokenizer: one token per byte")

    def __init__(self, options: Any, path: str) -> None:
        if path == "missing":
            raise ConfigError("there is no tokenizer.json.", where=path)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the text's bytes."""
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of bytes."""
        stream = self.stream((), skip_special_tokens=skip_special_tokens)
        return "".join(map(stream.push, token_ids)) + stream.flush()

    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> TokenStream:
        """Return a stream; bytes need no context."""
        return ByteStream(skips_special=skip_special_tokens)

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each byte as text."""
        return [self.decode([token_id], skip_special_tokens=False) for token_id in token_ids]

    def facts(self) -> FakeFacts:
        """Return the fixed facts."""
        return FakeFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """Options of the fake model. Prompts may carry orders too, see `FakeExecutor`."""

    script: str = field(default="", metadata={"help": "text every request gets, then the end"})
    delay_s: float = field(default=0.0, metadata={"help": "sleep in every step"})
    start_delay_s: float = field(default=0.0, metadata={"help": "sleep while loading"})
    start_error: str = field(default="", metadata={"help": "ConfigError raised while loading"})
    start_crash: str = field(default="", metadata={"help": "RuntimeError raised while loading"})
    dies_at_step: int = field(default=-1, metadata={"help": "step in which the worker is lost"})
    exits_at_step: int = field(default=-1, metadata={"help": "step in which the process exits"})
    sleep_fault: str = field(default="", metadata={"help": "call that fails: sleep or wake_up"})


class _Done:
    """A step that has run already."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], StepResult]) -> None:
        self._make = make

    def result(self) -> StepResult:
        """Return the result."""
        return self._make()


@dataclass(slots=True, kw_only=True)
class _Row:
    new: NewRow
    token_ids: list[int]


class FakeExecutor(Executor):
    """Draws tokens in plain Python; checks that plans make sense.

    A prompt that contains "FAULT" has a row fault at its third token, one with "KILL" ends the
    process at its first; others draw their script, or letters hashed from (seed, all tokens so
    far) when there is none.
    """

    info = Info(summary="test executor: plain Python, no model")
    capabilities = frozenset({"async_steps", "collective_rpc", "sleep"})
    Options = FakeOptions

    def __init__(self, options: FakeOptions, run: RunSpec, worker: Selection) -> None:
        self._options = options
        self._rows: dict[int, _Row] = {}
        self.is_shut_down = False
        self.sleep_calls: list[tuple[object, ...]] = []
        time.sleep(options.start_delay_s)
        if options.start_error:
            raise ConfigError(options.start_error, where="--fake", fix="do not.")
        if options.start_crash:
            raise RuntimeError(options.start_crash)

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return one small layer."""
        return [KVLayer(name="layers.0", num_kv_heads=1, head_size=8, dtype="float32")]

    def free_bytes(self) -> int:
        """Return a megabyte."""
        return 1 << 20

    def allocate(self, layout: KVLayout) -> None:
        """Remember the sizes."""
        self._num_blocks = layout.num_blocks

    def sleep(self, level: int) -> None:
        """Note the call, or raise."""
        self._note_sleep("sleep", level)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Note the call, or raise."""
        self._note_sleep("wake_up", *tags)

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Answer for two ranks with the arguments; "fail" raises, "nap" takes its time."""
        if call.method == "fail":
            raise RequestError("rank 1: fail raised ValueError: no luck.", status=500)
        if call.method == "nap":
            time.sleep(*call.args)
        return [{"rank": rank, "args": [*call.args], **call.kwargs} for rank in range(2)]

    def _note_sleep(self, name: str, *args: object) -> None:
        if self._options.sleep_fault == name:
            raise RequestError("there is no room.", fix="make some.", status=507)
        self.sleep_calls.append((name, *args))

    def submit(self, plan: StepPlan) -> PendingStep:
        """Run the step now; the answer (or the death) is given by result()."""
        if plan.step_id == self._options.exits_at_step:
            os._exit(9)
        result = self._run(plan)

        def answer() -> StepResult:
            time.sleep(self._options.delay_s)
            if plan.step_id == self._options.dies_at_step:
                raise EngineDead("the fake worker is gone.")
            return result

        return _Done(answer)

    def _run(self, plan: StepPlan) -> StepResult:
        for number in plan.freed_rows:
            del self._rows[number]
        for new in plan.new_rows:
            assert new.row not in self._rows, f"row {new.row} was never freed"
            self._rows[new.row] = _Row(new=new, token_ids=list(new.token_ids))
        return StepResult(step_id=plan.step_id, rows=tuple(self._draw(step) for step in plan.rows))

    def _draw(self, step: RowStep) -> RowResult:
        row = self._rows[step.row]
        end = step.start + step.num_tokens
        assert end <= len(row.token_ids), "a plan computes tokens that nobody knows"
        prompt_logprobs = self._prompt_logprobs(row, step)
        if not step.samples:
            return RowResult(row=step.row, prompt_logprobs=prompt_logprobs)
        assert end == len(row.token_ids), "samples, but not after the last known token"
        position = end - row.new.num_prompt_tokens
        if b"KILL" in _bytes_of(row.new.token_ids):
            os._exit(9)
        if position == 2 and b"FAULT" in _bytes_of(row.new.token_ids):
            return RowResult(row=step.row, fault="the logits of this row are NaN.")
        token_id = self._next(row, position)
        row.token_ids.append(token_id)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if row.new.sampling.logprobs is not None:
            logprobs = (_logprobs_of(token_id, row.new.sampling.logprobs),)
        return RowResult(
            row=step.row,
            token_ids=(token_id,),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _prompt_logprobs(self, row: _Row, step: RowStep) -> tuple[TokenLogprobs, ...]:
        count = row.new.sampling.prompt_logprobs
        if count is None:
            return ()
        end = min(step.start + step.num_tokens, row.new.num_prompt_tokens - 1)
        return tuple(
            _logprobs_of(token_id, count) for token_id in row.token_ids[step.start + 1 : end + 1]
        )

    def _next(self, row: _Row, position: int) -> int:
        if self._options.script:
            script = self._options.script.encode()
            return script[position] if position < len(script) else EOS
        text = repr((row.new.seed, row.token_ids)).encode()
        return ord("a") + hashlib.blake2b(text, digest_size=1).digest()[0] % 26

    def shutdown(self) -> None:
        """Remember that this was called."""
        self.is_shut_down = True


def _bytes_of(token_ids: Sequence[int]) -> bytes:
    return bytes(token_id for token_id in token_ids if token_id < EOS)


def _logprobs_of(token_id: int, count: int) -> TokenLogprobs:
    top_ids = tuple((token_id + i) % VOCAB_SIZE for i in range(count))
    return TokenLogprobs(
        token_id=token_id,
        logprob=-0.5,
        rank=1,
        top_ids=top_ids,
        top_logprobs=tuple(-0.5 - i for i in range(count)),
    )


def _selection(kind: str, cls: type[Any], options: dict[str, Any] | None = None) -> Selection:
    return Selection(
        kind=kind, name="fake", target=f"{cls.__module__}:{cls.__name__}", options=options or {}
    )


class FakeRenderer(Renderer):
    """Writes the contents of messages, a line each."""

    info = Info(summary="a line for each message")

    def __init__(self, options: Any, facts: RendererFacts) -> None: ...

    def reads(self, *, has_tools: bool) -> Reads:
        """Return the defaults: roles and texts."""
        return Reads()

    def render(self, given: RendererInput) -> str:
        """Return one line per message."""
        return "\n".join(str(message["content"]) for message in given.messages)


def fake_renderer() -> Selection:
    """Return the choice of FakeRenderer."""
    return _selection("renderer", FakeRenderer)


def fake_spec(
    *,
    options: dict[str, Any] | None = None,
    num_blocks: int = 257,
    block_tokens: int = 4,
    max_rows: int = 64,
    max_step_tokens: int = 64,
    max_model_tokens: int = 256,
    async_steps: bool = False,
    tokenizer_path: str = "",
    default_sampling: dict[str, Any] | None = None,
    stat_loggers: tuple[Selection, ...] = (),
    logits_processors: tuple[Selection, ...] = (),
    checks_invariants: bool = True,
) -> EngineSpec:
    """Return an EngineSpec of fakes. `options` are FakeExecutor's."""
    model = ModelSpec(
        path="fake-model",
        architecture="Fake",
        hf_config={},
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=8,
        max_position_tokens=max_model_tokens,
        eos_token_ids=(EOS,),
        bos_token_id=BOS,
    )
    unused = Selection(kind="unused", name="unused", target="unused:unused")
    return EngineSpec(
        run=RunSpec(
            model=model,
            device="cpu",
            kv_dtype="float32",
            block_tokens=block_tokens,
            max_rows=max_rows,
            max_step_tokens=max_step_tokens,
            max_model_tokens=max_model_tokens,
            seed=0,
            model_plugin=unused,
            load_format=unused,
            quantization=unused,
            attention=unused,
            logits_processors=logits_processors,
            async_steps=async_steps,
        ),
        cache=CacheSpec(
            block_tokens=block_tokens,
            num_blocks=num_blocks,
            memory_bytes=None,
            memory_share=0.9,
            uses_prefix_cache=True,
            hash_algorithm=prefix_hash.DEFAULT,
        ),
        schedule=ScheduleSpec(
            max_rows=max_rows,
            max_step_tokens=max_step_tokens,
            max_model_tokens=max_model_tokens,
            uses_chunked_prefill=True,
            long_prefill_tokens=0,
            async_steps=async_steps,
        ),
        scheduler=_selection("scheduler", FakeScheduler),
        policy=_selection("scheduling_policy", FakePolicy),
        executor=_selection("executor", FakeExecutor, options),
        worker=unused,
        tokenizer=_selection("tokenizer", ByteTokenizer),
        tokenizer_path=tokenizer_path,
        stat_loggers=stat_loggers,
        served_names=("fake",),
        default_sampling=default_sampling or {},
        checks_invariants=checks_invariants,
    )
