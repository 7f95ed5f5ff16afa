"""VoxtralProcessor: audio in windows of 30 s, each with 375 placeholders in a prompt.

transformers' own only computes features for chats parsed by the package mistral-common.
Source: https://arxiv.org/abs/2507.13264; config.json and preprocessor_config.json of Voxtral.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.json_values import json_value

BEGIN = "[BEGIN_AUDIO]"
"""The text before an audio's placeholders."""
FILE = "preprocessor_config.json"


class VoxtralProcessor:
    """Converts audio to features and placeholder text. A window of `frames` spectrogram frames has
    `rows` placeholders."""

    def __init__(self, feature_extractor: Any, tokenizer: Any, *, token_id: int, rows: int) -> None:
        self.feature_extractor = feature_extractor
        self.tokenizer = tokenizer
        self.audio_token: str = tokenizer.convert_ids_to_tokens(token_id)
        self._rows = rows

    @staticmethod
    def is_wanted() -> bool:
        """Return True: transformers' own takes only chats that mistral-common has read."""
        return True

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> VoxtralProcessor:
        """Return the processor of a checkpoint. Raises: ConfigError"""
        import transformers

        if not (Path(folder) / "tokenizer.json").is_file():
            raise ConfigError(
                "the folder has no tokenizer.json, which Voxtral's sounds need.",
                where=str(folder),
                fix="write one of its tekken.json with transformers.",
            )
        config = json_value((Path(folder) / "config.json").read_text(encoding="utf-8"))
        hears = config["audio_config"]
        rows = hears["max_source_positions"] * hears["hidden_size"] // hears["intermediate_size"]
        return cls(
            transformers.WhisperFeatureExtractor.from_pretrained(folder),
            transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
            token_id=int(config["audio_token_id"]),
            rows=int(rows),
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the processor's files."""
        self.feature_extractor.save_pretrained(folder)
        path = Path(folder) / FILE
        stored = json_value(path.read_text(encoding="utf-8"))
        stored["processor_class"] = type(self).__name__
        path.write_text(json.dumps(stored), encoding="utf-8")

    def __call__(
        self,
        text: list[str],
        audio: list[Any] | None = None,
        return_tensors: str = "pt",
        return_text_replacement_offsets: bool = False,
        sampling_rate: int | None = None,
    ) -> dict[str, Any]:
        """Return the features of audio, the ids of a text, and each audio's placeholder text.

        Shapes: features [windows of all sounds, bands, frames]
        """
        import torch

        windows = [self._windows(one, sampling_rate) for one in audio or ()]
        found: dict[str, Any] = {"input_features": torch.cat(windows)} if windows else {}
        texts = [BEGIN + self.audio_token * (self._rows * len(one)) for one in windows]
        (whole,) = text
        first, *rest = whole.split(self.audio_token)
        whole = first + "".join(a + b for a, b in zip(texts, rest, strict=True))
        found.update(self.tokenizer([whole], return_tensors=return_tensors))
        if return_text_replacement_offsets:
            found["text_replacement_offsets"] = [[{"replacement": one} for one in texts]]
        return found

    def _windows(self, samples: Any, rate_hz: int | None) -> Any:
        """Return a sound's spectrogram in whole windows: silence fills up the last one."""
        hears = self.feature_extractor
        spectrogram = hears(
            samples,
            sampling_rate=rate_hz,
            padding=True,
            truncation=False,
            pad_to_multiple_of=hears.n_samples,
            return_tensors="pt",
        )["input_features"]
        return spectrogram.reshape(spectrogram.shape[1], -1, hears.nb_max_frames).transpose(0, 1)
