"""LLM: a model for scripts and notebooks. Flags by name, prompts in, texts out.

Needs neither a server nor fastapi. It runs engines through SyncEngine (one, in this thread) or
SyncEngines (several, in processes of their own), which have the same interface.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.one_model import check_one_model
from dovetail.config.rules.parallel.joining import check_serves, remote_engines_class, starter_of
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.offline.sync_engine import SyncEngine
from dovetail.engine.client.offline.sync_engines import SyncEngines
from dovetail.engine.client.requests.input_processor import PreparedRequest, Prompt
from dovetail.engine.client.results.collector import RequestCollector
from dovetail.engine.client.results.outputs import GenerationResult, RequestOutput
from dovetail.engine.worker_calls import APPLY_MODEL, function_name, worker_call
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.profile import GET_READY, START, STOP
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.llm.adapters import AdapterCalls, Loras
from dovetail.llm.beams import BeamCalls
from dovetail.llm.constraints import ConstraintCalls
from dovetail.llm.facts import FactCalls
from dovetail.llm.pooling import PoolingCalls
from dovetail.llm.prompts import Prompts, for_each, listed, salts
from dovetail.multimodal.given import as_medium
from dovetail.multimodal.loader import load_once
from dovetail.multimodal.prompt import MediaPrompt
from dovetail.registry.blame import blaming

ChatMessages = Sequence[Mapping[str, Any]]


class LLM(
    FactCalls,
    ConstraintCalls,
    AdapterCalls,
    BeamCalls,
    PoolingCalls,
    AbstractContextManager["LLM"],
):
    """One loaded model. Use it from one thread; `close` (or `with`) releases the memory."""

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        """Load a model; `flags` are the flags of `dovetail serve`, with underscores.

        Raises: ConfigError naming the flag or the file at fault.
        """
        fields = flags if model is None else {"model": model, **flags}
        config = Config.from_fields(fields)
        config.tell(sys.stderr)
        check_serves(config.parallel)
        check_one_model(config.origins)
        self._frontend = config.frontend
        self._renderer_options = config.plugin.options_of("renderer")
        self._renderers: dict[bool, Selection] = {}  # by whether a call brings a template
        self._closing = ExitStack()
        with ExitStack() as opening:
            self._engine: Any = _opened(resolve(config), config, opening)
            self._closing = opening.pop_all()

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> Self:
        """Return an LLM for an engine whose spec is already resolved."""
        llm = cls.__new__(cls)
        llm._frontend = Config().frontend
        llm._renderer_options, llm._renderers = {}, {}
        llm._closing = ExitStack()
        llm._engine = _opened(spec, Config(), llm._closing)
        return llm

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] = 0,
    ) -> list[GenerationResult]:
        """Return one result per prompt, in order.

        A prompt is text or a list of token ids, or either in {"prompt"} and {"prompt_token_ids"}.
        `priority` is one value for all prompts, or one for each. `lora_request` is the adapter of
        all prompts, or of each. It is loaded if needed.

        A request that ends with a fault has `error` set; the others continue.
        Raises: RequestError before anything runs when a prompt or its params are wrong.
        """
        given = listed(prompts)
        params = self._params_for(sampling_params, len(given))
        adapters = self._adapter_names(lora_request, len(given))
        prepared = [
            self._engine.prepare(prompt, one, priority=rank, cache_salt=salt, adapter=adapter)
            for prompt, one, rank, salt, adapter in zip(
                given,
                params,
                for_each(priority, len(given), "priorities"),
                salts(prompts, len(given)),
                adapters,
                strict=True,
            )
        ]
        texts = [prompt if isinstance(prompt, str) else None for prompt in given]
        return self._run(prepared, texts, shows_progress=use_tqdm)

    def chat(
        self,
        messages: ChatMessages | Sequence[ChatMessages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: Loras = None,
        *,
        chat_template: str | None = None,
        chat_template_content_format: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[GenerationResult]:
        """Return one result per conversation; a single conversation gives a list of one.

        `lora_request`: as in `generate`. `chat_template_content_format` is "auto", "string" or
        "openai" (None: the format that the LLM was created with). `mm_processor_kwargs` are options
        of the media processor.
        Raises: RequestError as `generate`, or when the chat template refuses the messages.
        """
        single = len(messages) == 0 or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if single else messages
        adapters = self._adapter_names(lora_request, len(conversations))
        frontend = _with_content_format(self._frontend, chat_template_content_format)
        tokenizers = [self._engine.vocabularies.of(adapter).tokenizer for adapter in adapters]
        prompts = [
            self._render(
                tokenizer,
                conversation,
                tools or (),
                chat_template,
                frontend,
                adds_generation_prompt=add_generation_prompt and not continue_final_message,
                continues_final_message=continue_final_message,
                kwargs=dict(chat_template_kwargs or {}),
            )
            for tokenizer, conversation in zip(tokenizers, conversations, strict=True)
        ]
        params = self._params_for(sampling_params, len(prompts))
        options = mm_processor_kwargs or {}
        prepared = [
            self._engine.prepare(self._prompt(own, rendered, options), one, adapter=adapter)
            for own, rendered, one, adapter in zip(
                tokenizers, prompts, params, adapters, strict=True
            )
        ]
        texts = [rendered.text for rendered in prompts]
        return self._run(prepared, texts, shows_progress=use_tqdm)

    def _prompt(self, tokenizer: Tokenizer, rendered: Any, options: Mapping[str, Any]) -> Prompt:
        """Return a rendered conversation as token ids, with its media. Raises: RequestError"""
        ids = _tokens(tokenizer, rendered)
        if not rendered.media:
            return ids
        assert self.spec.media is not None, "the renderer refuses media that a model does not take"
        loaded = asyncio.run(load_once(self.spec.media.settings, rendered.media))
        media = tuple(as_medium(one) for one in loaded)
        return MediaPrompt(text=tuple(ids), media=media, options=dict(options))

    def _render(
        self,
        tokenizer: Tokenizer,
        messages: ChatMessages,
        tools: Sequence[Mapping[str, Any]],
        template: str | None,
        frontend: FrontendConfig,
        *,
        adds_generation_prompt: bool,
        continues_final_message: bool,
        kwargs: dict[str, Any],
    ) -> Any:
        """Return the server's RenderedPrompt of a conversation. Raises: RequestError"""
        # pydantic is needed for chats only, so it is not loaded before.
        from dovetail.server.generate.body.chat import ChatRequest, Message, ToolBody
        from dovetail.server.generate.rendering.building import build_renderer

        renderer = build_renderer(
            self._engine,
            frontend,
            self._renderers.get(bool(template)),
            tokenizer=tokenizer,
            template=template,
            options=self._renderer_options,
        )
        self._renderers[bool(template)] = renderer.selection
        body = ChatRequest.model_construct(
            messages=_parsed(Message, messages, "messages"),
            tools=_parsed(ToolBody, tools, "tools"),
            chat_template_kwargs=kwargs,
            add_generation_prompt=adds_generation_prompt,
            continue_final_message=continues_final_message,
        )
        return renderer.render(body)

    def _params_for(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        """Return one SamplingParams per prompt, constraints compiled. Raises: RequestError"""
        if given is None:
            return [self.default_params()] * count
        if isinstance(given, SamplingParams):
            return self._constrained([given]) * count
        if len(given) != count:
            raise ValueError(f"{count} prompts, but {len(given)} sampling params")
        return self._constrained(given)

    def _run(
        self,
        prepared: Sequence[PreparedRequest],
        texts: Sequence[str | None],
        *,
        shows_progress: bool,
    ) -> list[GenerationResult]:
        """Run generation requests to completion; return their results."""
        collectors = self._ended(prepared, texts, "generate", shows_progress=shows_progress)
        return [collector.result() for collector in collectors]

    def _ended(
        self,
        prepared: Sequence[PreparedRequest],
        texts: Sequence[str | None],
        doing: str,
        *,
        shows_progress: bool,
    ) -> list[RequestCollector]:
        """Run prepared requests to completion; Ctrl-C aborts them all and leaves the LLM usable."""
        engine = self._engine
        collectors = {
            engine.submit(request): RequestCollector(request, text)
            for request, text in zip(prepared, texts, strict=True)
        }
        unfinished = set(collectors)
        shown = _progress(doing, len(collectors), is_shown=shows_progress)
        try:
            with _loaded_is_frozen(), shown as progress:
                while unfinished:
                    ended = self._step(collectors, progress)
                    unfinished -= ended
                    progress.update(len(ended))
        finally:
            for key in unfinished:
                engine.abort(key)
            engine.settle()
        return list(collectors.values())

    def _step(
        self, collectors: Mapping[int, RequestCollector], progress: _Progress | _NoProgress
    ) -> set[int]:
        """Run one step; return the keys of the requests that ended in it."""
        step = self._engine.step()
        ended = set()
        for key, output in step.outputs:
            collectors[key].add(output)
            progress.add(_num_tokens(output))
            if output.is_finished:
                ended.add(key)
        for key, error in step.errors:
            collectors[key].fail(error)
            ended.add(key)
        return ended

    def sleep(self, level: int = 1) -> None:
        """Release the memory of weights and KV cache; needs enable_sleep_mode.

        Level 1 saves the weights in host memory (on a CPU: in a temporary file); level 2 reads them
        from the checkpoint again on wake-up. Raises: RequestError
        """
        self._engine.sleep(level)

    def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Restore the memory of "weights" or "kv_cache" (no tags: both).

        Raises: RequestError
        """
        self._engine.wake_up(tags)

    @property
    def is_sleeping(self) -> bool:
        """Return whether weights or KV cache are asleep."""
        return self._engine.is_sleeping

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Run a method on the worker of every rank; return the results in rank order, engine by
        engine.

        Arguments and results are JSON values or bytes. A module-level function is called with the
        worker as its first argument; the ranks import it by name. Raises: RequestError naming a
        rank that failed, or those that have not answered within `timeout` seconds
        """
        return self._engine.collective_rpc(worker_call(method, timeout, args, kwargs))

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a module-level function with the model on every rank; return the results.

        Raises: RequestError
        """
        return self.collective_rpc(APPLY_MODEL, args=(function_name(function),))

    def start_profile(self) -> None:
        """Start torch's profiler on every rank; needs profiler_config.

        Raises: RequestError naming a rank that is already profiling or cannot write a trace
        """
        for function in (GET_READY, START):
            self.collective_rpc(function)

    def stop_profile(self) -> list[str]:
        """Stop the profiler of every rank; return the files of the traces. Raises: RequestError"""
        return self.collective_rpc(STOP)

    def close(self) -> None:
        """Release the model's memory. May be called twice."""
        self._engine.shutdown()
        self._closing.close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@blaming("loading the model")
def _opened(spec: EngineSpec, config: Config, closing: ExitStack) -> SyncEngine | SyncEngines:
    """Return the engine: one in this thread, or several in processes, on this machine or others.
    What must be closed after the engines is pushed on the stack. Raises: ConfigError"""
    if not spec.elsewhere:
        return SyncEngines(spec) if spec.num_engines > 1 else SyncEngine(spec)
    if starter_of(config.parallel) is None:
        raise ConfigError(
            "engines of other machines come to a server, and this is not one.",
            where="--data-parallel-size-local",
            fix="leave it out, or use `dovetail serve`.",
        )
    return SyncEngines(spec, closing.enter_context(remote_engines_class()(config, spec)).wait())


class _Freezing:
    """Whether an LLM of this process has frozen the loaded objects, and whether the program has."""

    num_inside = 0
    is_the_programs = False


@contextmanager
def _loaded_is_frozen() -> Iterator[None]:
    """Exclude existing objects from garbage collection inside a with block: scanning a loaded
    engine repeatedly is a quarter of the host's work for hundreds of requests. If the program has
    frozen objects itself, do nothing, from then on: counting a million of them takes 30 ms."""
    if not (_Freezing.num_inside or _Freezing.is_the_programs):
        _Freezing.is_the_programs = gc.get_freeze_count() > 0
    if _Freezing.num_inside or _Freezing.is_the_programs:
        yield
        return
    _Freezing.num_inside += 1
    gc.freeze()
    try:
        yield
    finally:
        _Freezing.num_inside -= 1
        gc.unfreeze()


def _with_content_format(frontend: FrontendConfig, name: str | None) -> FrontendConfig:
    """Return the settings with another content format; unchanged for None. Raises: PluginError"""
    if name is None:
        return frontend
    registry.load("chat_content_format", name, where="chat_template_content_format")
    return replace(frontend, chat_template_content_format=name)


def _tokens(tokenizer: Tokenizer, rendered: Any) -> Sequence[int]:
    """Return a rendered conversation's token ids; only the template's text makes control tokens."""
    if rendered.plain:
        return tokenizer.encode_with_plain(rendered.text, rendered.plain, add_special_tokens=False)
    return tokenizer.encode(rendered.text, add_special_tokens=False)


def _num_tokens(output: RequestOutput) -> int:
    """Return the number of tokens in an output: generated tokens, or tokens of a pooled prompt."""
    if output.pooled is not None:
        return len(output.prompt_token_ids)
    return sum(len(delta.token_ids) for delta in output.deltas)


class _NoProgress:
    """Shows nothing."""

    def add(self, num_tokens: int) -> None:
        """Count no tokens."""

    def update(self, num_requests: int) -> None:
        """Count no requests."""


@contextmanager
def _progress(doing: str, total: int, *, is_shown: bool) -> Iterator[_Progress | _NoProgress]:
    """Show a progress bar of requests inside a with block."""
    if not is_shown:
        yield _NoProgress()
        return
    with tqdm(total=total, desc=doing) as bar:
        yield _Progress(bar)


class _Progress:
    """A progress bar of requests with tokens per second, updated a few times a second."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._started_s = self._shown_s = time.monotonic()
        self._num_tokens = 0

    def add(self, num_tokens: int) -> None:
        """Count tokens. Mutates: the bar"""
        self._num_tokens += num_tokens
        now_s = time.monotonic()
        if now_s - self._shown_s > 0.2:
            self._shown_s = now_s
            rate = self._num_tokens / (now_s - self._started_s)
            self._bar.set_postfix_str(f"{rate:.1f} tokens/s", refresh=True)

    def update(self, num_requests: int) -> None:
        """Count requests that ended. Mutates: the bar"""
        self._bar.update(num_requests)


def _parsed(body: Any, items: Sequence[Mapping[str, Any]], where: str) -> list[Any]:
    """Parse plain dicts into the server's validated bodies. Raises: RequestError"""
    from pydantic import ValidationError

    try:
        return [body.model_validate(item) for item in items]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{first['msg']} ({place}).", where=where) from None
