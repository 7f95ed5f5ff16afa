"""Words, windows and spectrograms of speech: divided as transformers divides tokens, measured as
its feature extractor measures, and cut where a decoder's times say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from tokenizers import Tokenizer

from dovetail_plugins.apis.audio.form import FALLBACK, AudioFile, AudioRequest
from dovetail_plugins.apis.audio.spectrogram import Spectrum, log_mel, mel_filters, window
from dovetail_plugins.apis.audio.windows import Listener, Segment, cut
from dovetail_plugins.apis.audio.windows import _Written as written
from dovetail_plugins.apis.audio.words import (
    TimedWord,
    divided,
    fitted,
    timed,
    usual_length,
    with_marks,
    within_sentences,
)
from dovetail_testing.tiny.models import write_tiny_tokenizer

whisper = pytest.importorskip("transformers.models.whisper.tokenization_whisper")
TEXTS = (
    " the quick brown fox, and the dog. Nobody minds?",
    ' he said: "the dog" (and the fox) - twice!',
    " naïve café — “déjà vu” … 東京 🦊 dog's",
    "the",
    " ... the . dog",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = write_tiny_tokenizer(tmp_path_factory.mktemp("words"))
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


class Judged:
    """The tokenizer as transformers' functions call one."""

    language = "english"
    eos_token_id = 10**6

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        text: str = self._tokenizer.decode(ids)
        return text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("language", "name"), [("en", "english"), ("ja", "japanese")])
def test_words_are_those_of_transformers(
    tokenizer: Tokenizer, text: str, language: str, name: str
) -> None:
    ids = tokenizer.encode(text).ids
    wanted, tokens, _ = whisper._combine_tokens_into_words(Judged(tokenizer), list(ids), name)
    times = [float(i) for i in range(len(ids) + 1)]
    words = with_marks(timed(divided(ids, tokenizer.decode, language), times))
    assert [one.text for one in words] == [one for one in wanted if one]
    assert [one.num_tokens for one in words] == [len(one) for one in tokens if one]


@pytest.mark.parametrize("num", [16_000, 16_159, 400_000, 1_000_003, 120])
def test_spectrograms_are_those_of_transformers(num: int) -> None:
    hf = pytest.importorskip("transformers")
    extractor = hf.WhisperFeatureExtractor()
    samples = np.random.default_rng(num).standard_normal(num).astype(np.float32) * 0.1
    samples[num // 2 :] *= 1e-4
    filters = mel_filters(80, 400, 16_000)
    made = log_mel(samples, Spectrum(size=400, hop=160, filters=filters))
    assert made.shape == (80, max(1, num // 160))
    if num > 1000:
        wanted = extractor(
            samples, sampling_rate=16_000, return_tensors="np", padding="longest", truncation=False
        )["input_features"][0]
        assert np.abs(made - wanted[:, : made.shape[1]]).max() < 1e-5
    part = window(made, made.shape[1] - 1, 7)
    assert part.shape == (80, 7) and not part[:, 1:].any() and part[:, 0].any()


@pytest.mark.parametrize(("bands", "size"), [(80, 400), (128, 400), (40, 512)])
def test_filters_are_those_of_transformers(bands: int, size: int) -> None:
    hf = pytest.importorskip("transformers")
    extractor = hf.WhisperFeatureExtractor(feature_size=bands, n_fft=size)
    made = mel_filters(bands, size, 16_000)
    assert np.abs(made - extractor.mel_filters.T).max() < 1e-7


def word(text: str, start: float, end: float) -> TimedWord:
    return TimedWord(text=text, start=start, end=end, num_tokens=1)


def test_what_a_pause_has_stretched_is_cut() -> None:
    words = [word(" a", 0.0, 0.3), word(".", 0.3, 2.0), word(" b", 2.0, 2.3), word(" c", 2.3, 2.6)]
    usual = usual_length(words)
    assert usual == pytest.approx(0.3)
    cut_words = within_sentences(words, 2 * usual)
    assert cut_words[1].end == pytest.approx(0.9)
    late = [word(" d", 5.0, 9.0), word(" e", 9.0, 9.3)]
    made, start, end = fitted(late, 5.0, 9.3, 2.6, usual)
    assert (made[0].start, start) == (pytest.approx(8.4), pytest.approx(8.4))
    assert (made[1].end, end) == (9.3, 9.3)
    far, start, end = fitted([word(" f", 1.0, 3.0)], 2.0, 2.2, 2.5, usual)
    assert (far[0].start, far[0].end) == (2.0, 2.3) and (start, end) == (2.0, 2.2)
    assert usual_length([]) == 0.0 and fitted([], 1.0, 2.0, 0.0, 0.3) == ([], 1.0, 2.0)


TIME = 100
"""The id of the time 0."""


@pytest.mark.parametrize(
    ("ids", "pieces", "heard_s", "is_closed"),
    [
        ([100, 5, 150], [(0.0, 1.0, [100, 5, 150])], 30.0, True),
        ([110, 5, 6], [(0.0, 0.2, [110, 5, 6])], 30.0, False),
        ([100, 5, 6], [(0.0, 30.0, [100, 5, 6])], 30.0, False),
        ([100, 5, 150, 160, 6], [(0.0, 1.0, [100, 5, 150])], 1.0, False),
        (
            [100, 5, 150, 160, 6, 200],
            [(0.0, 1.0, [100, 5, 150]), (1.2, 2.0, [160, 6, 200])],
            30.0,
            True,
        ),
    ],
)
def test_a_window_is_cut_at_its_times(
    ids: list[int], pieces: list[Any], heard_s: float, is_closed: bool
) -> None:
    found = cut(ids, TIME, 30.0, has_times=True)
    assert found.pieces == [
        (pytest.approx(start), pytest.approx(end), part) for start, end, part in pieces
    ]
    assert (found.heard_s, found.is_closed) == (pytest.approx(heard_s), is_closed)


CREDIBLE, UNLIKELY, REPEATED = (-0.4, 1.5), (-1.7, 1.5), (-0.2, 4.0)
"""(mean log probability, rate of compression) of what the decoder writes."""


class Scripted(Listener):
    """A listener whose decoder writes by a script: for each attempt how credible it is."""

    script: ClassVar[list[tuple[float, float]]] = []
    silence: ClassVar[float] = 0.0
    tried: ClassVar[list[float]] = []
    read: ClassVar[list[tuple[int, ...]]] = []

    async def _attempt(self, part: Any, ids: Any, temperature: float) -> Any:
        self.tried.append(temperature)
        self.read.append(ids)
        logprob, rate = self.script[len(self.tried) - 1]
        return written(
            token_ids=(len(self.tried),),
            avg_logprob=logprob,
            temperature=temperature,
            compression_ratio=rate,
        )

    async def _no_speech_prob(self, heard: Any, ids: Any) -> float:
        return self.silence


@pytest.mark.parametrize(
    ("script", "silence", "tried", "told", "has_context"),
    [
        ([CREDIBLE], 0.0, [0.0], 1, True),
        ([REPEATED, CREDIBLE], 0.0, [0.0, 0.2], 2, True),
        ([UNLIKELY, REPEATED, UNLIKELY, CREDIBLE], 0.0, [0.0, 0.2, 0.4, 0.6], 4, False),
        ([UNLIKELY] * 6, 0.0, list(FALLBACK), 6, False),
        ([REPEATED, UNLIKELY], 0.9, [0.0, 0.2], None, True),
    ],
    ids=["credible", "repeated", "warm", "never-credible", "silence"],
)
def test_what_is_not_credible_is_written_again_at_a_higher_temperature(
    script: list[tuple[float, float]],
    silence: float,
    tried: list[float],
    told: int | None,
    has_context: bool,
) -> None:
    """What was drawn at a high temperature is no context for the next window."""
    Scripted.script, Scripted.silence, Scripted.tried, Scripted.read = script, silence, [], []
    encoder = SimpleNamespace(max_rows=100)
    run = SimpleNamespace(model=SimpleNamespace(encoder=encoder), max_model_tokens=60)
    decode = SimpleNamespace(decode=lambda ids, **_: f" word {ids[0]}", encode=lambda *_, **__: [7])
    tokens = SimpleNamespace(
        prompt=lambda *_, **__: (50,), before=49, languages={}, first_time=100, start=50
    )
    listener = Scripted(
        engine=cast(Any, SimpleNamespace(spec=SimpleNamespace(run=run), tokenizer=decode)),
        tokens=cast(Any, tokens),
        spectrogram=np.zeros((8, 200), dtype=np.float32),
        duration_s=2.0,
        request=AudioRequest(file=AudioFile(), language="en", prompt="before"),
        request_id="one",
    )

    async def heard() -> list[Segment]:
        return [segment async for segment in listener.segments()]

    segments = asyncio.run(heard())
    assert Scripted.tried == tried
    assert set(Scripted.read) == {(49, 7, 50)}  # the prompt is what was said before
    assert [one.text for one in segments] == ([] if told is None else [f" word {told}"])
    assert [one.temperature for one in segments] == ([] if told is None else tried[-1:])
    assert bool(listener._context) == has_context
