"""Search: one setting after the other, each value beside the best so far.

Both engines run at the same time and answer in turns, so that a machine that becomes slower or
faster meanwhile does not decide; where memory has no room for both, the earlier figures of the best
are compared. A value is adopted if it is better by more than NOISE and its perplexity is within the
bound.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.checks import checked
from dovetail.config.rules.steps.cache_size import kv_bytes
from dovetail.errors import ConfigError, DovetailError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_plugins.tune.axes import Fields, axes_of
from dovetail_plugins.tune.settings import TuneFlags
from dovetail_plugins.tune.trial import Trial

NOISE = 0.03
"""The share by which a value must be better."""
CLEAR = 0.15
"""One round is enough if it differs by this share."""
ROUNDS = 3
NUM_TEXTS, TEXT_TOKENS = 16, 128
MEMORY_CONTEXT = 8192
SPARE_BLOCKS = 2
"""Blocks of the cache that a request may take beyond its tokens, the last of them half empty."""
CACHE_FLAGS = ("kv_cache_memory_bytes", "num_gpu_blocks_override", "gpu_memory_utilization")
ORIGIN = "dovetail tune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a setting. `ratio` is its value over that of the best so far (below 1:
    better), `loss` by how much it raises the perplexity (0.01: one percent)."""

    fields: Fields
    is_adopted: bool = False
    ratio: float | None = None
    loss: float | None = None
    value: float | None = None
    refusal: str = ""


@dataclass(kw_only=True)
class Search:
    """A search in progress. `say` is called with each outcome."""

    config: Config
    flags: TuneFlags
    say: Callable[[Outcome], None]
    best: dict[str, Any] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    untried: list[Fields] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    plain_logprobs: list[float] = field(default_factory=list)
    first_value: float = math.nan
    value: float = math.nan
    draws: random.Random = field(default_factory=lambda: random.Random(0))
    _trial: Trial | None = None

    def run(self) -> None:
        """Search until all is tried or the time is over. Raises: DovetailError if the engine does
        not load as it is. Mutates: self"""
        end_s = time.monotonic() + 60 * self.flags.minutes
        spec = self.spec({})
        try:
            self._begin(spec)
            for axis in axes_of(self.config, spec, self.flags):
                for fields in axis.candidates():
                    if time.monotonic() > end_s:
                        self.untried.append(fields)
                    else:
                        self._try(fields)
        finally:
            self._end_best()

    def _begin(self, spec: EngineSpec) -> None:
        """Take the texts and the figures of the engine as it is. Mutates: self"""
        self._check_lengths(spec)
        self._trial = trial = Trial.start(spec)
        text_tokens = min(TEXT_TOKENS, spec.run.max_model_tokens - 1)
        self.texts = trial.texts(self.flags.text, NUM_TEXTS, text_tokens)
        self.plain_logprobs = trial.logprobs(self.texts)
        self._measure(trial)  # the first reads weights that later ones find in memory
        values = [self._measure(trial) for _ in range(ROUNDS)]
        self.value = self.first_value = statistics.median(values)

    def _check_lengths(self, spec: EngineSpec) -> None:
        """Raise ConfigError if a measured request would be longer than the model takes."""
        longest = spec.run.max_model_tokens
        if self.flags.prompt_tokens + self.flags.answer_tokens > longest:
            raise ConfigError(
                f"prompt and answer are longer than the {longest} tokens of a request.",
                where="--prompt-tokens",
                fix="measure shorter ones, or give a larger --max-model-len.",
            )

    def _end_best(self) -> None:
        if self._trial is not None:
            self._trial.end()
        self._trial = None

    def _try(self, fields: Fields) -> None:
        """Load and measure one value; adopt it if it is better. Mutates: self"""
        other: Trial | None = None
        try:
            spec = self.spec(fields)
            if not self._is_room_for_two():
                self._end_best()
            other = Trial.start(spec)
            outcome = self._compared(fields, other)
        except DovetailError as error:
            outcome = Outcome(fields=fields, refusal=str(error))
        if outcome.is_adopted:
            self._end_best()
            self._trial = other
            self.best |= fields
            self.value *= outcome.ratio or 1.0
        elif other is not None:
            other.end()
        self.outcomes.append(outcome)
        self.say(outcome)

    def _is_room_for_two(self) -> bool:
        """Return whether the best engine may stay. Memory is measured of one at a time, since two
        share pages."""
        if self._trial is None or self.flags.goal == "memory":
            return False
        return psutil.virtual_memory().available > 1.2 * self._trial.memory_bytes()

    def _compared(self, fields: Fields, other: Trial) -> Outcome:
        """Return the outcome of a loaded engine. Raises: TrialError"""
        loss = perplexity_rise(self.plain_logprobs, other.logprobs(self.texts))
        outcome = Outcome(fields=fields, loss=loss)
        if 100 * loss > self.flags.max_loss:
            return outcome
        self._measure(other)
        values: list[float] = []
        ratios = [1.0]
        while len(values) < ROUNDS and (not values or abs(math.log(ratios[-1])) < CLEAR):
            values.append(self._measure(other))
            ratios.append(values[-1] / (self._measure(self._trial) if self._trial else self.value))
        ratio = statistics.median(ratios[1:])
        value = statistics.median(values)
        return replace(outcome, ratio=ratio, value=value, is_adopted=ratio < 1 - NOISE)

    def _measure(self, trial: Trial) -> float:
        """Return a measured value: seconds of an answer, seconds a token of several, or bytes."""
        count = 1 if self.flags.goal == "latency" else self.flags.requests
        prompts = [self._prompt() for _ in range(count)]
        answered = trial.answer(prompts, self.flags.answer_tokens)
        tokens = count * (self.flags.prompt_tokens + self.flags.answer_tokens)
        values = {
            "latency": lambda: answered.total_s,
            "throughput": lambda: answered.total_s / tokens,
            "memory": lambda: float(trial.memory_bytes()),
        }
        return values[self.flags.goal]()

    def _prompt(self) -> list[int]:
        """Return the next prompt, cut from the texts one after the other. Mutates: self"""
        joined = [token for text in self.texts for token in text]
        start = self.draws.randrange(len(joined))
        repeats = 1 + (start + self.flags.prompt_tokens) // len(joined)
        return (joined * repeats)[start : start + self.flags.prompt_tokens]

    def spec(self, fields: Fields) -> EngineSpec:
        """Return the engine with the best settings and these. Raises: ConfigError"""
        config = self.with_settings({**self.best, **fields})
        return resolve(config)

    def with_settings(self, fields: Mapping[str, Any]) -> Config:
        """Return the config of an engine with room for what is measured. Raises: ConfigError"""
        tuned = checked(self.config.with_fields(fields, origin=ORIGIN))
        return checked(tuned.with_fields(self._room(resolve(tuned)), origin=ORIGIN))

    def room(self) -> dict[str, Any]:
        """Return what bounds length and cache of the best engine. Raises: ConfigError"""
        return self._room(resolve(checked(self.config.with_fields(self.best, origin=ORIGIN))))

    def _room(self, spec: EngineSpec) -> dict[str, Any]:
        """Return the settings that bound length and cache, without those that the user gave."""
        given, model, kv_dtype = self.config.is_given, spec.run.model, spec.run.kv_dtype
        needed = self.flags.prompt_tokens + self.flags.answer_tokens
        context = self.flags.context or self._usual_context(spec)
        length = min(max(needed, context), spec.run.max_model_tokens)
        room: dict[str, Any] = {}
        if not given("max_model_len"):
            room["max_model_len"] = length
        if not any(map(given, CACHE_FLAGS)):
            step, spare = spec.run.max_step_tokens, SPARE_BLOCKS * spec.run.block_tokens
            several = self.flags.requests * kv_bytes(model, kv_dtype, needed + spare, step)
            one = kv_bytes(model, kv_dtype, length + spare, step)
            room["kv_cache_memory_bytes"] = max(several, one)
        return room

    def _usual_context(self, spec: EngineSpec) -> int:
        """Return the context that a user who names none wants; while measuring, what texts need."""
        is_for_memory = self.flags.goal == "memory"
        return min(spec.run.max_model_tokens, MEMORY_CONTEXT) if is_for_memory else TEXT_TOKENS + 1


def perplexity_rise(plain: Sequence[float], other: Sequence[float]) -> float:
    """Return by what share the perplexity of a text rises, from the logarithms of its tokens'
    probabilities. For a text that the model wrote itself this is the exponential of the
    Kullback-Leibler divergence, less one."""
    differences = [a - b for a, b in zip(plain, other, strict=True)]
    return math.expm1(statistics.fmean(differences))
