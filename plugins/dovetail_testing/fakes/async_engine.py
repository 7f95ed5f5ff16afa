"""FakeAsyncEngine: an engine that follows a script, for tests of the HTTP server.

Real checks of requests (InputProcessor), made-up tokens: every piece of a script is one delta, its
characters are its token ids. No process, no model, no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.engine.client.connection import EngineState
from dovetail.engine.client.pooling.input_processor import PooledInput
from dovetail.engine.client.requests.gated import followed
from dovetail.engine.client.requests.input_processor import InputProcessor, Prompt
from dovetail.engine.client.results.outputs import CompletionDelta, RequestMetrics, RequestOutput
from dovetail.engine.client.results.stop import TextWatch
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.kv import prefix_hash
from dovetail.errors import EngineDead
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    PoolingParams,
)
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import (
    CacheSpec,
    EngineSpec,
    ModelSpec,
    PoolingSpec,
    RunSpec,
    Selection,
)
from dovetail.interfaces.data.step import Pooled, TokenLogprobs
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer, TokenStream
from dovetail.observability.caller import CALLER
from dovetail_testing.fakes.adapters import FakeAdapters
from dovetail_testing.fakes.end import FakeEnd
from dovetail_testing.fakes.operations import FakeOperations

VOCAB_SIZE = 0x110000
EOS_ID = 0
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}[{{ tools | length }} tools]{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)
"""A chat template with thinking, tools and calls."""


@dataclass(slots=True, kw_only=True)
class FakeFacts:
    """Facts of the character tokenizer."""

    vocab_size: int = VOCAB_SIZE
    bos_token_id: int | None = None
    eos_token_id: int | None = EOS_ID
    special_tokens: dict[str, str] = field(default_factory=lambda: {"eos_token": "<|im_end|>"})
    special_ids: frozenset[int] = frozenset({EOS_ID})
    special_texts: dict[int, str] = field(default_factory=dict)
    chat_template: str | None = CHATML
    chat_templates: dict[str, str] = field(default_factory=dict)
    max_tokens: int | None = None


MARKS = RequestMetrics(arrival_s=1.0, first_scheduled_s=1.5, first_token_s=2.0, last_token_s=3.0)
"""When things happened to every request of the fake engine."""


class _Characters:
    """Each token's character, immediately."""

    def push(self, token_id: int) -> str:
        """Return the character."""
        return chr(token_id)

    def flush(self) -> str:
        """Return "": nothing is buffered."""
        return ""


class FakeTokenizer(Tokenizer):
    """One token per character; its id is the code point."""

    info = Info(summary="test tokenizer: characters")

    def __init__(self, options: Any = None, path: str = "", facts: FakeFacts | None = None) -> None:
        self._facts = facts or FakeFacts()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return code points."""
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the characters."""
        return "".join(chr(i) for i in token_ids if i or not skip_special_tokens)

    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> TokenStream:
        """Return a stream of characters."""
        return _Characters()

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each character."""
        return [chr(token_id) for token_id in token_ids]

    def facts(self) -> FakeFacts:
        """Return the facts."""
        return self._facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script of a fake engine. `raises` comes after the pieces; `step_s` is the pause before
    each."""

    pieces: Sequence[str] = ("Hello", ", world")
    finish_reason: str = "stop"
    stop_reason: int | str | None = None
    step_s: float = 0.0
    raises: Exception | None = None
    hangs: bool = False


def fake_spec(**changes: Any) -> EngineSpec:
    """Return the spec of a fake engine; `max_model_tokens`, `max_rows`, `pooling`, `profile`,
    `room` for adapters and fields of EngineSpec may be changed."""
    max_model_tokens = changes.pop("max_model_tokens", 4096)
    max_rows = changes.pop("max_rows", 8)
    run = RunSpec(
        pooling=changes.pop("pooling", None),
        profile=changes.pop("profile", None),
        adapters=changes.pop("room", None),
        model=_model_spec(),
        device="cpu",
        kv_dtype="float32",
        block_tokens=16,
        max_rows=max_rows,
        max_step_tokens=512,
        max_model_tokens=max_model_tokens,
        seed=0,
        model_plugin=_selection("model"),
        load_format=_selection("load_format"),
        quantization=_selection("quantization"),
        attention=_selection("attention_backend"),
    )
    cache = CacheSpec(
        block_tokens=16,
        num_blocks=64,
        memory_bytes=None,
        memory_share=0.5,
        uses_prefix_cache=True,
        hash_algorithm=prefix_hash.DEFAULT,
    )
    schedule = ScheduleSpec(
        max_rows=max_rows,
        max_step_tokens=512,
        max_model_tokens=max_model_tokens,
        uses_chunked_prefill=True,
        long_prefill_tokens=0,
        async_steps=False,
    )
    fields: dict[str, Any] = {
        "run": run,
        "cache": cache,
        "schedule": schedule,
        "scheduler": _selection("scheduler"),
        "policy": _selection("scheduling_policy"),
        "executor": _selection("executor"),
        "worker": _selection("worker"),
        "tokenizer": _selection("tokenizer"),
        "tokenizer_path": "",
        "served_names": ("fake", "alias"),
    }
    return EngineSpec(**(fields | changes))


def _model_spec() -> ModelSpec:
    return ModelSpec(
        path="fake",
        architecture="Fake",
        hf_config={},
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=8,
        max_position_tokens=4096,
        eos_token_ids=(EOS_ID,),
    )


def fake_pooling(**changes: Any) -> PoolingSpec:
    """Return how a fake engine pools; fields of PoolingSpec may be changed."""
    fields: dict[str, Any] = {
        "tasks": (EMBED, TOKEN_EMBED),
        "pooler": _selection("pooler"),
        "token_pooler": _selection("pooler"),
        "size": 8,
        "is_normalized": True,
    }
    return PoolingSpec(**(fields | changes))


def fake_numbers(token_ids: Sequence[int], params: PoolingParams, pooling: PoolingSpec) -> Any:
    """Return the fake engine's result for a prompt: it depends only on all its tokens.

    Shapes: [size] or [n, size], of classes [C] or [n, C]; the start of a pair's second text counts.
    """
    is_class = params.task in (CLASSIFY, TOKEN_CLASSIFY)
    size = len(pooling.labels) if is_class else params.dimensions or pooling.size
    ids = np.array(token_ids)[:, None]
    states = np.sin(ids * np.arange(1, size + 1) + (params.first_text_tokens or 0))
    numbers = states if params.task in (TOKEN_EMBED, TOKEN_CLASSIFY) else states.mean(axis=0)
    if is_class:
        numbers = numbers if params.is_activated is False else 1 / (1 + np.exp(-numbers))
    elif pooling.is_normalized if params.is_normalized is None else params.is_normalized:
        numbers = numbers / np.linalg.norm(numbers, axis=-1, keepdims=True)
    return numbers.astype(np.float32)


def _selection(kind: str) -> Selection:
    return Selection(kind=kind, name="fake", target="dovetail_testing.fakes.async_engine:Fake")


class FakeAsyncEngine(FakeAdapters, FakeEnd, FakeOperations):
    """Has the methods of AsyncEngine that the server calls, and records the calls."""

    def __init__(
        self,
        script: Script | Callable[[str, int], Script] | None = None,
        *,
        spec: EngineSpec | None = None,
        facts: FakeFacts | None = None,
    ) -> None:
        self.spec = spec or fake_spec()
        self.tokenizer = FakeTokenizer(facts=facts)
        self.text_process = None
        self.script = script or Script()
        FakeEnd.__init__(self)
        FakeOperations.__init__(self)
        self.heartbeat_s = 0.0
        self.counts = (0, 0)
        self.engine_states: list[EngineState] = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.num_resets = 0
        self.reset_fault: Exception | None = None
        self.asleep: tuple[str, ...] = ()
        self.sleep_calls: list[tuple[object, ...]] = []
        self.constraint_compiler = None
        self.asked: list[tuple[str, SamplingParams, dict[str, Any]]] = []
        self.pooled: list[tuple[str, PoolingParams, tuple[int, ...]]] = []
        self.pooled_with: list[str] = []
        FakeAdapters.__init__(self, self.spec)
        self.owners: list[tuple[str, float]] = []
        self.num_pending_tokens = self.most_running = 0
        self._input = InputProcessor(self.spec, self.vocabularies)
        self._pooled_input = PooledInput(self.spec, self.vocabularies, self._input)

    @property
    def tokenizer(self) -> Any:
        """Return the model's tokenizer; a test may set another."""
        return self.vocabularies.own.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self.vocabularies = Vocabularies(self.spec, tokenizer)

    def default_params(self, **fields: Any) -> SamplingParams:
        """Return the spec's defaults overlaid by `fields`."""
        return SamplingParams(**{**self.spec.default_sampling, **fields})

    def load(self) -> tuple[int, int]:
        """Return (running, waiting) as the test set them."""
        return self.counts

    def pending_tokens(self) -> int:
        """Return what the test set."""
        return self.num_pending_tokens

    def states(self) -> list[EngineState]:
        """Return the one engine's, or what the test set."""
        running, waiting = self.counts
        own = EngineState(
            engine=0,
            reason=self.death_reason,
            asleep=self.asleep,
            running=running,
            waiting=waiting,
            heartbeat_age_s=self.heartbeat_s,
        )
        return self.engine_states or [own]

    def heartbeat_age_s(self) -> float:
        """Return the age the test set."""
        return self.heartbeat_s

    async def reset_prefix_cache(self) -> None:
        """Count the call. Raises: the test's exception."""
        if self.reset_fault is not None:
            raise self.reset_fault
        self.num_resets += 1

    async def sleep(self, level: int = 1, *, waits: bool = False) -> None:
        """Note the wish and sleep."""
        self.sleep_calls.append(("sleep", level, waits))
        self.asleep = ("weights", "kv_cache")

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Record the call and wake up the named parts."""
        self.sleep_calls.append(("wake_up", *tags))
        self.asleep = tuple(tag for tag in self.asleep if tags and tag not in tags)

    async def is_sleeping(self) -> bool:
        """Return whether anything sleeps."""
        return bool(self.asleep)

    async def abort(self, request_id: str) -> None:
        """Note an abort."""
        self.aborted.append(request_id)

    async def shutdown(self) -> None:
        """End the engine."""
        self.die("the engine was shut down.")

    async def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        adapter: str = "",
        watch: Callable[[], TextWatch] | None = None,
        **how: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the script, once per completion. Stop strings end nothing, watched or not."""
        if not self.is_alive:
            raise EngineDead(self.death_reason or "dead")
        prepared = self._input.prepare(prompt, params, request_id, adapter=adapter)
        self._check_adapter(adapter)
        extras = {"priority": priority, "cache_salt": cache_salt, "prompt": prepared.prompt_ids}
        extras |= {name: value for name, value in how.items() if value}
        if adapter:
            extras["adapter"] = adapter
        self.asked.append((request_id, prepared.params, extras))
        if (caller := CALLER.get()) is not None:
            self.owners.append((caller.owner, caller.weight))
        self.running.add(request_id)
        self.most_running = max(self.most_running, len(self.running))
        is_done = False
        try:
            outputs = self._outputs(prepared.prompt_ids, prepared.params, request_id)
            async for output in followed(prepared, outputs):
                yield output
            is_done = True
        finally:
            self.running.discard(request_id)
            if not is_done:
                self.aborted.append(request_id)

    async def pool(
        self, prompt: Prompt, params: PoolingParams, request_id: str, **how: Any
    ) -> RequestOutput:
        """Return `fake_numbers` of a prompt after the script's pause, or raise its exception."""
        if not self.is_alive:
            raise EngineDead(self.death_reason or "dead")
        prepared = self._pooled_input.prepare(prompt, params, request_id, **how)
        self._check_adapter(prepared.requests[0].adapter)
        self.pooled_with.append(prepared.requests[0].adapter)
        ids = prepared.prompt_ids
        pooling = self.spec.run.pooling
        assert pooling is not None
        self.pooled.append((request_id, params, ids))
        self.running.add(request_id)
        self.most_running = max(self.most_running, len(self.running))
        script = self._script(self.tokenizer.decode(ids), 0)
        is_done = False
        try:
            await asyncio.sleep(script.step_s)
            if script.hangs:
                await asyncio.Event().wait()
            is_done = True
        finally:
            self.running.discard(request_id)
            if not is_done:
                self.aborted.append(request_id)
        if script.raises is not None:
            raise script.raises
        numbers = fake_numbers(ids, params, pooling)
        return RequestOutput(
            request_id=request_id,
            prompt_token_ids=ids,
            is_finished=True,
            metrics=MARKS,
            pooled=Pooled(shape=numbers.shape, data=numbers.tobytes()),
        )

    async def _outputs(
        self, prompt_ids: tuple[int, ...], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        text = self.tokenizer.decode(prompt_ids)
        scripts = [self._script(text, index) for index in range(params.n)]
        longest = max(len(script.pieces) for script in scripts)
        for position in range(longest):
            await asyncio.sleep(scripts[0].step_s)
            if not self.is_alive:
                raise EngineDead(self.death_reason or "dead")
            deltas = tuple(
                _delta(index, script, position, params)
                for index, script in enumerate(scripts)
                if position < len(script.pieces)
            )
            yield _output(request_id, prompt_ids, params, deltas, position, longest)
        for script in scripts:
            if script.raises is not None:
                raise script.raises
            if script.hangs:
                await asyncio.Event().wait()

    def _script(self, prompt: str, index: int) -> Script:
        return self.script if isinstance(self.script, Script) else self.script(prompt, index)


def _delta(index: int, script: Script, position: int, params: SamplingParams) -> CompletionDelta:
    piece = script.pieces[position]
    is_last = position == len(script.pieces) - 1 and script.raises is None and not script.hangs
    ids = tuple(ord(character) for character in piece)
    return CompletionDelta(
        index=index,
        text=piece,
        token_ids=ids,
        num_chars=(1,) * len(ids),
        logprobs=None if params.logprobs is None else _logprobs(ids, params.logprobs),
        finish_reason=script.finish_reason if is_last else None,
        stop_reason=script.stop_reason if is_last else None,
    )


def _output(
    request_id: str,
    prompt_ids: tuple[int, ...],
    params: SamplingParams,
    deltas: tuple[CompletionDelta, ...],
    position: int,
    longest: int,
) -> RequestOutput:
    tops = params.prompt_logprobs if position == 0 else None
    return RequestOutput(
        request_id=request_id,
        metrics=MARKS,
        prompt_token_ids=prompt_ids,
        deltas=deltas,
        is_finished=position == longest - 1,
        prompt_logprobs=None if tops is None else _logprobs(prompt_ids[1:], tops),
        num_cached_tokens=len(prompt_ids) // 2,
    )


def _logprobs(token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    tops = tuple(range(97, 97 + max(num_top, 0)))
    own = [float("-inf") if token_id == ord("-") else -0.5 for token_id in token_ids]
    others = tuple(-0.5 - i for i in range(len(tops)))
    return tuple(
        TokenLogprobs(token_id=one, logprob=value, rank=1, top_ids=tops, top_logprobs=others)
        for one, value in zip(token_ids, own, strict=True)
    )
