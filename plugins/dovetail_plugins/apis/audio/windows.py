"""Transcription of a recording in windows.

The encoder reads a window, the decoder writes its text, and the times in the text cut it into
segments. The next window begins at the end of the last segment. Text that is not credible (too
unlikely, or repetitive) is generated again at a higher temperature. Source: Radford et al., "Robust
speech recognition via large-scale weak supervision", 2022, section 4.5
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.requests.encoder_prompt import EncoderPrompt
from dovetail.engine.client.results.outputs import CompletionDelta, RequestOutput, numbers
from dovetail.errors import RequestError
from dovetail.interfaces.data.media import Feature, PartPlace, PromptPart
from dovetail.interfaces.data.sampling_params import Alignment, SamplingParams
from dovetail_plugins.apis.audio.form import AudioRequest
from dovetail_plugins.apis.audio.spectrogram import HOP_SAMPLES, RATE_HZ, window
from dovetail_plugins.apis.audio.speech_tokens import TIME_STEP_S, SpeechTokens
from dovetail_plugins.apis.audio.words import (
    TimedWord,
    divided,
    fitted,
    timed,
    usual_length,
    with_marks,
    within_sentences,
)

FRAMES_PER_S = RATE_HZ // HOP_SAMPLES
FRAMES_PER_ROW = 2
LEAST_LOGPROB, MOST_REPEATED, NO_SPEECH = -1.0, 2.4, 0.6
"""A text is not credible below this mean log probability or above this compression ratio. If in
addition the third probability is exceeded, there is no speech. Source: Radford et al., 2022"""
COLD = 0.5
"""Text sampled above this temperature is not used as context for the next window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment of speech. `words` are only there if requested. Units: start, end and seek_s in
    seconds of the whole recording"""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    seek_s: float
    words: tuple[TimedWord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The encoder's input from frame `first` on: `frames` of audio, then silence."""

    part: PromptPart
    first: int
    frames: int

    @property
    def start_s(self) -> float:
        return self.first / FRAMES_PER_S

    @property
    def length_s(self) -> float:
        return self.frames / FRAMES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The decoder's output for a window. `no_speech_prob` is None if it was not needed."""

    token_ids: tuple[int, ...]
    avg_logprob: float
    temperature: float
    compression_ratio: float
    no_speech_prob: float | None = None

    @property
    def is_credible(self) -> bool:
        return self.avg_logprob >= LEAST_LOGPROB and self.compression_ratio <= MOST_REPEATED

    @property
    def is_silence(self) -> bool:
        return self.avg_logprob < LEAST_LOGPROB and (self.no_speech_prob or 0.0) > NO_SPEECH


@dataclass(slots=True, kw_only=True)
class Listener:
    """One recording during transcription. `num_tokens` counts the generated tokens.

    `language` is the request's, or is detected in the first window. Shapes: spectrogram [M,
    frames]; units: duration_s
    """

    engine: AsyncEngine
    tokens: SpeechTokens
    spectrogram: np.ndarray
    duration_s: float
    request: AudioRequest
    request_id: str
    adapter: str = ""
    language: str | None = None
    num_tokens: int = 0
    _context: list[int] = field(default_factory=list)
    _num_calls: int = 0
    _last_end: float = 0.0

    @property
    def _max_rows(self) -> int:
        encoder = self.engine.spec.run.model.encoder
        assert encoder is not None
        return encoder.max_rows

    @property
    def _window_frames(self) -> int:
        return self._max_rows * FRAMES_PER_ROW

    @property
    def _has_times(self) -> bool:
        return self.request.needs_times or self.spectrogram.shape[1] > self._window_frames

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """Yield the segments of the recording in order. Raises: RequestError, RequestFault"""
        self.language = self.request.language
        if self.request.prompt:
            text = " " + self.request.prompt.strip()
            self._context = self.engine.tokenizer.encode(text, add_special_tokens=False)
        seek = 0
        while seek < self.spectrogram.shape[1]:
            window = await asyncio.to_thread(self._window, seek)
            if self.language is None and self.tokens.languages:
                await self._find_language(window)
            written = await self._write(window)
            if written.is_silence:
                seek += window.frames
                continue
            found = cut(
                written.token_ids,
                self.tokens.first_time,
                window.length_s,
                has_times=self._has_times,
            )
            segments = [self._segment(written, window, *piece) for piece in found.pieces]
            seek += max(1, round(found.heard_s * FRAMES_PER_S))
            if self.request.needs_words:
                segments = await self._with_words(window, segments)
                if segments and segments[-1].words and not found.is_closed:
                    seek = max(window.first + 1, round(segments[-1].end * FRAMES_PER_S))
            segments = [one for one in segments if one.text.strip() and one.start < one.end]
            self._remember(written, segments)
            for segment in segments:
                yield segment

    def _segment(
        self, written: _Written, window: _Window, start: float, end: float, ids: Sequence[int]
    ) -> Segment:
        return Segment(
            start=round(window.start_s + start, 2),
            end=round(window.start_s + end, 2),
            text=self.engine.tokenizer.decode(ids, skip_special_tokens=True),
            token_ids=tuple(ids),
            temperature=written.temperature,
            avg_logprob=written.avg_logprob,
            compression_ratio=written.compression_ratio,
            no_speech_prob=written.no_speech_prob or 0.0,
            seek_s=window.start_s,
        )

    def _remember(self, written: _Written, segments: Sequence[Segment]) -> None:
        """Store the text as context for the next window. Mutates: self"""
        token_ids = [one for segment in segments for one in segment.token_ids]
        self._context = [] if written.temperature > COLD else [*self._context, *token_ids]

    def _window(self, first: int) -> _Window:
        """Return the encoder's input from a frame on."""
        features = window(self.spectrogram, first, self._window_frames)
        data = features.tobytes()
        key = hashlib.sha256(b"speech" + data).hexdigest()
        place = PartPlace(key, "audio", (), self._max_rows)
        part = PromptPart(
            place=place, features=(Feature("input_features", "float32", features.shape, data),)
        )
        frames = min(self._window_frames, self.spectrogram.shape[1] - first)
        return _Window(part=part, first=first, frames=frames)

    async def _find_language(self, window: _Window) -> None:
        """Detect the spoken language. Mutates: self"""
        languages = {one: code for code, one in self.tokens.languages.items()}
        params = SamplingParams(
            temperature=0.0, max_tokens=1, allowed_token_ids=tuple(languages), detokenize=False
        )
        (delta,) = await self._run(window.part, (self.tokens.start,), params)
        self.language = languages[delta.token_ids[0]]

    async def _no_speech_prob(self, window: _Window, ids: tuple[int, ...]) -> float:
        """Return the probability of silence, which the decoder predicts after the start token."""
        quiet = self.tokens.no_speech
        if quiet is None:
            return 0.0
        params = SamplingParams(
            temperature=0.0, max_tokens=1, logprob_token_ids=(quiet,), detokenize=False
        )
        start = ids[: ids.index(self.tokens.start) + 1]
        (delta,) = await self._run(window.part, start, params)
        (logprobs,) = delta.logprobs or ()
        found = dict(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True))
        return float(np.exp(found.get(quiet, -np.inf)))

    async def _write(self, window: _Window) -> _Written:
        """Return the decoder's text for a window: the first that is credible or silence, else the
        last. The probability of silence is computed if a text is not credible, or if the answer
        includes it."""
        ids = self.tokens.prompt(self.language, self._task, has_times=self._has_times)
        room = self.engine.spec.run.max_model_tokens // 2 - 1
        if self._context and self.tokens.before is not None:
            ids = (self.tokens.before, *self._context[-room:], *ids)
        quiet = await self._no_speech_prob(window, ids) if self.request.tells_silence else None
        for temperature in self.request.temperatures:
            written = await self._attempt(window.part, ids, temperature)
            if quiet is None and not written.is_credible:
                quiet = await self._no_speech_prob(window, ids)
            written = replace(written, no_speech_prob=quiet)
            if written.is_credible or written.is_silence:
                break
        return written

    @property
    def _task(self) -> str:
        return "translate" if self.request.is_translation else "transcribe"

    async def _with_words(self, window: _Window, segments: list[Segment]) -> list[Segment]:
        """Return segments with their words, and with times corrected by the words. Mutates: self"""
        plain = [self._text_ids(segment) for segment in segments]
        ids = [one for part in plain for one in part]
        if not ids:
            return segments
        decode = partial(self.engine.tokenizer.decode, skip_special_tokens=True)
        times = await self._token_times(window, ids)
        words = timed(divided(ids, decode, self.language), times)
        usual = usual_length(words)
        words = with_marks(within_sentences(words, usual * 2) if usual else words)
        found, taken = [], 0
        for segment, part in zip(segments, plain, strict=True):
            own: list[TimedWord] = []
            while taken < len(words) and sum(one.num_tokens for one in own) < len(part):
                own.append(words[taken])
                taken += 1
            fit, start, end = fitted(own, segment.start, segment.end, self._last_end, usual)
            self._last_end = end if fit else self._last_end
            found.append(
                replace(segment, start=round(start, 2), end=round(end, 2), words=tuple(fit))
            )
        return found

    def _text_ids(self, segment: Segment) -> list[int]:
        """Return a segment's tokens without time tokens."""
        return [one for one in segment.token_ids if one < self.tokens.start]

    async def _token_times(self, window: _Window, ids: Sequence[int]) -> list[float]:
        """Return the start time of each token of a window, and the end of the last one. Units:
        seconds of the whole recording"""
        start = self.tokens.prompt(self.language, self._task, has_times=False)
        max_tokens = self.engine.spec.run.max_model_tokens - len(start) - 2
        first = len(start) - 1
        rows = max(1, window.frames // FRAMES_PER_ROW)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            detokenize=False,
            alignment=Alignment(first=first, num_rows=rows),
        )
        prompt = (*start, *ids[:max_tokens])
        outputs = await self._outputs(window.part, prompt, params)
        pooled = next((one.pooled for one in outputs if one.pooled is not None), None)
        assert pooled is not None, "a prompt to be aligned is answered with numbers"
        times = [window.start_s + row * TIME_STEP_S for row in numbers(pooled).tolist()]
        return times + times[-1:] * (len(ids) + 1 - len(times))

    async def _attempt(
        self, part: PromptPart, ids: tuple[int, ...], temperature: float
    ) -> _Written:
        params = SamplingParams(
            temperature=temperature,
            seed=self.request.seed,
            logprobs=0,
            detokenize=False,
            logits_processors={"speech_times": self.tokens.rules(has_times=self._has_times)},
        )
        deltas = await self._run(part, ids, params)
        drawn = tuple(one for delta in deltas for one in delta.token_ids)
        logprobs = [one.logprob for delta in deltas for one in delta.logprobs or ()]
        self.num_tokens += len(drawn)
        text_ids = drawn[:-1] if drawn and drawn[-1] == self.tokens.end else drawn
        text = self.engine.tokenizer.decode(text_ids, skip_special_tokens=True).strip()
        data = text.encode()
        return _Written(
            token_ids=text_ids,
            avg_logprob=sum(logprobs) / max(1, len(logprobs)),
            temperature=temperature,
            compression_ratio=len(data) / len(zlib.compress(data)) if data else 0.0,
        )

    async def _run(
        self, part: PromptPart, ids: tuple[int, ...], params: SamplingParams
    ) -> list[CompletionDelta]:
        """Return all tokens generated after a decoder prompt. Raises: RequestError"""
        outputs = await self._outputs(part, ids, params)
        deltas = [delta for output in outputs for delta in output.deltas if delta.token_ids]
        if not deltas:
            raise RequestError("nothing was written of the sound.", status=500)
        return deltas

    async def _outputs(
        self, part: PromptPart, ids: tuple[int, ...], params: SamplingParams
    ) -> list[RequestOutput]:
        """Return the outputs for a decoder prompt. Raises: RequestError"""
        self._num_calls += 1
        prompt = EncoderPrompt(encoder=part, decoder=ids, is_whole=True)
        name = f"{self.request_id}-{self._num_calls}"
        async with aclosing(
            self.engine.generate(prompt, params, name, adapter=self.adapter)
        ) as outputs:
            return [output async for output in outputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCut:
    """A window as pieces (start, end, tokens), and the length that they cover. `is_closed`: an end
    time follows the last piece, so the rest is silence. Units: seconds of the window"""

    pieces: list[tuple[float, float, list[int]]]
    heard_s: float
    is_closed: bool


def cut(
    token_ids: Sequence[int], first_time: int, length_s: float, *, has_times: bool
) -> WindowCut:
    """Return the pieces of a window of `length_s`.

    Two adjacent times are an end and a start. Text after the last such pair is transcribed again in
    the next window, unless an end time closes it.
    """
    ids = list(token_ids)
    is_time = [one >= first_time for one in ids]
    seams = [i for i in range(1, len(ids)) if is_time[i] and is_time[i - 1]]
    is_closed = len(ids) >= 2 and is_time[-1] and not is_time[-2]
    if not has_times or not seams:
        times = [_seconds(one, first_time) for one in ids if one >= first_time]
        end = times[-1] if times and times[-1] > 0 else length_s
        return WindowCut(
            pieces=[(0.0, min(end, length_s), ids)], heard_s=length_s, is_closed=is_closed
        )
    if is_closed:
        seams.append(len(ids))
    pieces, last = [], 0
    for seam in seams:
        part = ids[last:seam]
        end = min(_seconds(part[-1], first_time), length_s)
        pieces.append((_seconds(part[0], first_time), end, part))
        last = seam
    heard_s = length_s if is_closed else _seconds(ids[last - 1], first_time)
    return WindowCut(pieces=pieces, heard_s=heard_s, is_closed=is_closed)


def _seconds(token_id: int, first_time: int) -> float:
    return max(0, token_id - first_time) * TIME_STEP_S
