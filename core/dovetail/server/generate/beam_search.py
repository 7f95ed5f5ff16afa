"""Beam search: finds the most likely whole answers by requesting one token at a time.

`Beams` is the search itself, without an engine. `beam_outputs` drives it: every live beam requests
its most likely next tokens, concurrently with all other requests. The prefix cache holds what the
beams share. Source: the beam search of transformers (GenerationMixin), with its scores and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.engine.client.results.outputs import CompletionDelta, RequestOutput
from dovetail.engine.client.text.vocabularies import Vocabulary
from dovetail.errors import RequestError, RequestFault
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.server.generate.body.fields import SamplingFields

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine
    from dovetail.interfaces.tokenizer import Tokenizer

EXCLUDED = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "stop",
    "stop_token_ids", "logit_bias", "bad_words", "allowed_token_ids", "logprobs", "prompt_logprobs",
    "logits_processors", "extra_args", "constraint", "thinking",
)  # fmt: skip
"""Sampling params that are meaningless, or not supported yet, in a search over whole answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSettings:
    """`width` beams are searched and the `count` best returned. Scores are sums / length **
    penalty."""

    width: int
    count: int
    length_penalty: float = 1.0
    is_early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A partial or complete answer: its tokens and the sum of their logprobs."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    finish_reason: str | None = None

    def score(self, penalty: float) -> float:
        """Return the length-normalized sum. The length includes end tokens."""
        return self.total / float(max(len(self.tokens), 1) ** penalty)


@dataclass(slots=True, kw_only=True)
class Beams:
    """One search. `live` beams still grow; `finished` holds the best complete answers so far."""

    settings: BeamSettings
    end_ids: frozenset[int]
    max_tokens: int
    live: list[Beam] = field(default_factory=lambda: [Beam()])
    finished: list[Beam] = field(default_factory=list)

    @property
    def num_wanted(self) -> int:
        """Return how many next tokens each beam needs, so that enough remain if some of them end
        it."""
        return max(2, 1 + len(self.end_ids)) * self.settings.width

    def grow(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Extend every live beam by its most likely tokens. `logprobs[i]` belongs to `live[i]`.

        Mutates: self
        """
        candidates = [
            (beam.total + logprob, place, beam, token_id)
            for place, (beam, one) in enumerate(zip(self.live, logprobs, strict=True))
            for token_id, logprob in zip(one.top_ids, one.top_logprobs, strict=True)
        ]
        candidates.sort(key=lambda found: (-found[0], found[1]))
        grown: list[Beam] = []
        for rank, (total, _, beam, token_id) in enumerate(candidates[: self.num_wanted]):
            tokens = (*beam.tokens, token_id)
            if token_id in self.end_ids:
                if rank < self.settings.width:
                    self._finish(Beam(tokens=tokens, total=total, finish_reason="stop"))
            elif len(grown) < self.settings.width:
                grown.append(Beam(tokens=tokens, total=total))
        self.live = [] if self._is_settled(grown) else grown
        if self.live and len(self.live[0].tokens) >= self.max_tokens:
            for beam in self.live:
                self._finish(Beam(tokens=beam.tokens, total=beam.total, finish_reason="length"))
            self.live = []

    def best(self) -> list[Beam]:
        """Return the best complete answers, best first."""
        return self.finished[: self.settings.count]

    def _finish(self, beam: Beam) -> None:
        penalty = self.settings.length_penalty
        self.finished.append(beam)
        self.finished.sort(key=lambda one: -one.score(penalty))
        del self.finished[self.settings.width :]

    def _is_settled(self, grown: Sequence[Beam]) -> bool:
        """Return whether no live beam can beat the worst finished one."""
        if not grown:
            return True
        if len(self.finished) < self.settings.width:
            return False
        penalty = self.settings.length_penalty
        return self.settings.is_early or self.finished[-1].score(penalty) >= grown[0].score(penalty)


def beam_settings(body: SamplingFields) -> BeamSettings:
    """Return a request's settings of beam search."""
    count = body.n or 1
    return BeamSettings(
        width=body.best_of or count,
        count=count,
        length_penalty=body.length_penalty,
        is_early=body.early_stopping,
    )


def check_beams(
    settings: BeamSettings, params: SamplingParams, engine: AsyncEngine, vocabulary: Vocabulary
) -> None:
    """Raise RequestError for params or settings of this server that rule out beam search."""
    plain = SamplingParams()
    for name in EXCLUDED:
        if getattr(params, name) != getattr(plain, name):
            raise RequestError(
                "cannot be combined with use_beam_search.",
                where=next(iter(params.extra_args)) if name == "extra_args" else name,
                fix=f"leave it out; where the model's own default is at fault, set it to "
                f"{getattr(plain, name)!r}.",
            )
    if engine.spec.run.logprobs_scale == "logits":
        raise RequestError(
            "this server tells logits, and beam search needs logprobs.",
            where="use_beam_search",
            fix="start the server with --logprobs-mode raw_logprobs.",
        )
    ends = _end_ids(params, vocabulary)
    wanted = Beams(settings=settings, end_ids=ends, max_tokens=1).num_wanted
    max_logprobs = engine.spec.max_logprobs
    if max_logprobs != -1 and wanted > max_logprobs:
        raise RequestError(
            f"{settings.width} beams need {wanted} logprobs, and this server gives {max_logprobs}.",
            where="best_of",
            fix="use fewer beams, or start the server with a higher --max-logprobs.",
        )


def _end_ids(params: SamplingParams, vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(() if params.ignore_eos else vocabulary.eos_token_ids)


async def beam_outputs(
    engine: AsyncEngine,
    vocabulary: Vocabulary,
    settings: BeamSettings,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    request_id: str,
    *,
    priority: int,
    cache_salt: str,
    adapter: str = "",
) -> AsyncGenerator[RequestOutput, None]:
    """Yield the best answers in one output, once all are found. Closing it aborts what runs.

    Raises: as AsyncEngine.generate
    """
    assert params.max_tokens is not None
    ends = _end_ids(params, vocabulary)
    beams = Beams(settings=settings, end_ids=ends, max_tokens=params.max_tokens)
    step_params = SamplingParams(
        max_tokens=1, seed=0, logprobs=beams.num_wanted, ignore_eos=True, detokenize=False
    )
    how = {"priority": priority, "cache_salt": cache_salt, "adapter": adapter}
    while beams.live:
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(
                    _next_tokens(engine, (*prompt_ids, *beam.tokens), step_params, request_id, how)
                )
                for beam in beams.live
            ]
        beams.grow([task.result() for task in asking])
    yield RequestOutput(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_ids),
        deltas=tuple(
            _delta(index, beam, vocabulary.tokenizer, prompt_ids, params)
            for index, beam in enumerate(beams.best())
        ),
        is_finished=True,
    )


async def _next_tokens(
    engine: AsyncEngine,
    ids: tuple[int, ...],
    params: SamplingParams,
    request_id: str,
    how: Mapping[str, Any],
) -> TokenLogprobs:
    """Return the most likely next tokens. `how` has further arguments of `generate`."""
    outputs = engine.generate(ids, params, request_id, **how)
    logprobs: TokenLogprobs | None = None
    try:
        async for output in outputs:
            for delta in output.deltas:
                logprobs = delta.logprobs[0] if delta.logprobs else logprobs
    finally:
        await outputs.aclose()
    if logprobs is None:
        raise RequestFault("the engine ended the request (abort).", where=request_id)
    return logprobs


def _delta(
    index: int, beam: Beam, tokenizer: Tokenizer, prompt_ids: Sequence[int], params: SamplingParams
) -> CompletionDelta:
    stream = tokenizer.stream(
        prompt_ids,
        skip_special_tokens=params.skip_special_tokens,
        kept_ids=frozenset(params.kept_special_ids),
    )
    is_cut = beam.finish_reason == "length"
    shown = beam.tokens if is_cut or params.include_stop_str_in_output else beam.tokens[:-1]
    pieces = [stream.push(token_id) for token_id in shown]
    rest = stream.flush()
    pieces[-1:] = [pieces[-1] + rest] if pieces else []
    num_chars = [*map(len, pieces), *[0] * (len(beam.tokens) - len(pieces))]
    return CompletionDelta(
        index=index,
        text="".join(pieces),
        token_ids=beam.tokens,
        num_chars=tuple(num_chars),
        finish_reason=beam.finish_reason,
    )
