"""Train a model of speech from nothing: spoken digits, in Whisper's layout.

    nice python examples/tiny_speech/train.py --out /tmp/tiny-speech
    dovetail serve /tmp/tiny-speech
    python examples/tiny_speech/ask.py

takes about eight minutes of one CPU core and writes a Hugging Face checkpoint. espeak-ng speaks
(`apt-get install espeak-ng`). Beside the decoder a layer learns to name digits frame by frame
(CTC: Graves et al., 2006); it teaches the encoder where sounds are, and is left out of the
checkpoint. This module does not know how good the model is; `ask.py` measures that.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import torch
from spoken import MOST_DIGITS, RATE_HZ, WINDOW_S, is_held_out, line, spoken, written
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

SEED = 3
TIME_STEP_S = 0.02
NUM_ROWS = round(WINDOW_S / TIME_STEP_S)
NUM_BANDS = 40
SIZE = 96
NUM_LINES = 1200
NUM_HELD_OUT = 64
BATCH_LINES = 16
RATE = 2e-3
TIMED_SHARE = 0.3
"""Of rows so many have times."""
ZEROED_SHARE = 0.5
"""Of spectrograms so many are zero behind the sound, as a server pads them; silence follows it in
the others."""
IGNORED = -100
REPORT_STEPS = 50
MEASURE_STEPS = 200
WORDS = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
    *(f"<|{i * TIME_STEP_S:.2f}|>" for i in range(NUM_ROWS + 1)),
)
Sound = tuple[np.ndarray, tuple[int, ...]]
"""Samples, digits."""
MOST_SAMPLES = int((WINDOW_S - 0.2) * RATE_HZ)


def tokenizer() -> Tokenizer:
    """Return bytes, digits behind a space, and the words that Whisper's decoder begins with."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    digits = [f"Ġ{digit}" for digit in range(10)]
    vocabulary = {text: i for i, text in enumerate([*alphabet, *digits])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", str(d)) for d in range(10)]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True) for word in WORDS])
    return made


def sounds(count: int, rng: Random, *, held_out: bool) -> list[Sound]:
    """Return lines as they are spoken."""
    lines = [line(rng, held_out=held_out) for _ in range(count)]
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(spoken, lines))
    pairs = zip(lines, made, strict=True)
    return [(samples, one.digits) for one, samples in pairs if len(samples) < MOST_SAMPLES]


class Batches:
    """Batches of windows: a line somewhere in each, louder or quieter, in noise. Where
    lines may be joined, few rows of digits come twice: a model that knows its lines by heart would
    not know where others end."""

    def __init__(
        self,
        told: list[Sound],
        words: Tokenizer,
        extractor: WhisperFeatureExtractor,
        *,
        joins: bool,
    ) -> None:
        self._by_length = {
            length: [one for one in told if len(one[1]) == length]
            for length in range(1, MOST_DIGITS + 1)
        }
        self._lengths = np.array([length for length, alike in self._by_length.items() if alike])
        self._shares = self._lengths / self._lengths.sum()  # long lines are harder
        self._joins = joins
        self._words = words
        self._extractor = extractor
        self._rng = np.random.default_rng(SEED)
        self._ids = {word: words.token_to_id(word) for word in WORDS}

    def next(self) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, ...]]]:
        """Return features, token ids (IGNORED behind the end), and digits."""
        chosen = [self._sound() for _ in range(BATCH_LINES)]
        windows, rows, ends = [], [], []
        for samples, digits in chosen:
            window, first, last = self._window(samples)
            windows.append(window)
            rows.append(self._row(digits, first, last))
            ends.append(self._end(last))
        features = self._extractor(windows, sampling_rate=RATE_HZ, return_tensors="pt")
        for spectrogram, end in zip(features["input_features"], ends, strict=True):
            spectrogram[:, end:] = 0
        width = max(map(len, rows))
        padded = [row + [IGNORED] * (width - len(row)) for row in rows]
        return features["input_features"], torch.tensor(padded), [one[1] for one in chosen]

    def _sound(self) -> Sound:
        """Return digits as one line or as several, with pauses between them."""
        while True:
            left, parts, digits = int(self._rng.choice(self._lengths, p=self._shares)), [], ()
            while left:
                length = int(self._rng.integers(left)) + 1 if self._joins else left
                alike = self._by_length[length]
                samples, more = alike[self._rng.integers(len(alike))]
                pause = int(self._rng.integers(RATE_HZ // 10)) if parts else 0
                parts.append(np.pad(samples, (pause, 0)))
                digits, left = digits + more, left - length
            joined = np.concatenate(parts)
            if len(joined) < MOST_SAMPLES and not (self._joins and is_held_out(digits)):
                return joined, digits

    def _window(self, samples: np.ndarray) -> tuple[np.ndarray, float, float]:
        """Return a line within silence, and when it begins and ends. Units: seconds"""
        rng, size = self._rng, WINDOW_S * RATE_HZ
        before = int(rng.integers(0, min(RATE_HZ, size - len(samples))))
        after = int(rng.integers(0, size - len(samples) - before + 1))
        made = np.pad(samples * rng.uniform(0.3, 1.2), (before, after)).astype(np.float32)
        made += rng.standard_normal(len(made), dtype=np.float32) * 10 ** rng.uniform(-5, -2.5)
        return made, before / RATE_HZ, (before + len(samples)) / RATE_HZ

    def _end(self, last: float) -> int:
        """Return the frame from which on a spectrogram is zero, for a line that ends then."""
        frames = 2 * NUM_ROWS
        if self._rng.random() >= ZEROED_SHARE:
            return frames
        return int(self._rng.integers(min(frames, round(last * frames / WINDOW_S) + 2), frames + 1))

    def _row(self, digits: tuple[int, ...], first: float, last: float) -> list[int]:
        start = [self._ids[f"<|{one}|>"] for one in ("startoftranscript", "en", "transcribe")]
        ids, end = self._words.encode(written(digits)).ids, self._ids["<|endoftext|>"]
        if self._rng.random() >= TIMED_SHARE:
            return [*start, self._ids["<|notimestamps|>"], *ids, end]
        steps = [round(at / TIME_STEP_S) for at in (first, last)]
        times = [self._ids[f"<|{step * TIME_STEP_S:.2f}|>"] for step in steps]
        return [*start, times[0], *ids, times[1], end]


def model(words: Tokenizer) -> WhisperForConditionalGeneration:
    """Return Whisper with half a million parameters."""
    end, start = (words.token_to_id(word) for word in WORDS[:2])
    config = WhisperConfig(
        vocab_size=words.get_vocab_size(),
        num_mel_bins=NUM_BANDS,
        d_model=SIZE,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * SIZE,
        decoder_ffn_dim=2 * SIZE,
        max_source_positions=NUM_ROWS,
        max_target_positions=64,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return WhisperForConditionalGeneration(config)


def write(
    made: WhisperForConditionalGeneration, states: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits ``[lines, tokens, words]``, and the token each is for (IGNORED: none)."""
    read = ids[:, :-1].clamp_min(0)
    logits = made(decoder_input_ids=read, encoder_outputs=(states,)).logits
    wanted = ids[:, 1:].clone()
    wanted[:, :2] = IGNORED  # the language and the task are given
    return logits, wanted


@torch.no_grad()
def share_right(made: WhisperForConditionalGeneration, batches: Batches, count: int = 8) -> float:
    """Return the share of lines each of whose digits, and the end, is the likeliest token."""
    right = 0
    for _ in range(count):
        features, ids, _ = batches.next()
        logits, wanted = write(made, made.model.encoder(features).last_hidden_state, ids)
        is_time = wanted > made.config.vocab_size - NUM_ROWS - 2
        right += int(((logits.argmax(-1) == wanted) | (wanted < 0) | is_time).all(1).sum())
    return right / (count * BATCH_LINES)


def train(
    made: WhisperForConditionalGeneration, batches: Batches, held_out: Batches, steps: int
) -> None:
    """Train; print the loss, and how many held-out lines are right, now and then. Mutates: made"""
    named = torch.nn.Linear(SIZE, 11)
    learned = [p for p in (*made.parameters(), *named.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    started, totals = time.process_time(), np.zeros(2)
    for step in range(steps):
        features, ids, digits = batches.next()
        states = made.model.encoder(features).last_hidden_state
        heard = named(states).log_softmax(-1).transpose(0, 1)
        flat = torch.tensor([digit + 1 for row in digits for digit in row])
        lengths = torch.tensor([len(row) for row in digits])
        rows = torch.full((len(digits),), len(heard))
        framewise = functional.ctc_loss(heard, flat, rows, lengths)
        logits, wanted = write(made, states, ids)
        told = functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED
        )
        (told + 0.5 * framewise).backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        totals += (told.item(), framewise.item())
        if (step + 1) % REPORT_STEPS == 0:
            losses = " and ".join(f"{one:.3f}" for one in totals / REPORT_STEPS)
            seconds = time.process_time() - started
            print(f"step {step + 1}/{steps}: {losses}; {seconds:.0f} s", flush=True)
            totals[:] = 0
        if (step + 1) % MEASURE_STEPS == 0 or step + 1 == steps:
            print(f"{share_right(made, held_out):.0%} of held-out lines are right", flush=True)


def save(
    made: WhisperForConditionalGeneration,
    words: Tokenizer,
    extractor: WhisperFeatureExtractor,
    folder: Path,
) -> None:
    """Write the checkpoint, as transformers and dovetail read it."""
    ids = {word: words.token_to_id(word) for word in WORDS}
    settings = {"decoder_start_token_id": ids["<|startoftranscript|>"]}
    settings |= {f"{one}_token_id": ids["<|endoftext|>"] for one in ("bos", "eos", "pad")}
    made.generation_config = GenerationConfig(
        **settings,
        is_multilingual=True,
        lang_to_id={"<|en|>": ids["<|en|>"]},
        task_to_id={one: ids[f"<|{one}|>"] for one in ("transcribe", "translate")},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        max_length=64,
    )
    made.save_pretrained(folder)
    extractor.save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    told |= {"bos_token": "<|endoftext|>", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")


def main() -> None:
    """Speak, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tiny-speech"))
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(SEED)
    words = tokenizer()
    extractor = WhisperFeatureExtractor(feature_size=NUM_BANDS, chunk_length=WINDOW_S)
    told = sounds(NUM_LINES, Random(SEED), held_out=False)
    asked_of = sounds(NUM_HELD_OUT, Random(SEED), held_out=True)
    print(f"{len(told)} lines are spoken", flush=True)
    made = model(words)
    batches = Batches(told, words, extractor, joins=True)
    train(made, batches, Batches(asked_of, words, extractor, joins=False), asked.steps)
    save(made.eval(), words, extractor, asked.out)


if __name__ == "__main__":
    main()
