"""SpeechTokens: the control tokens that tell a speech model which text to write.

Format: Whisper's, found by name among the tokens of the checkpoint (Radford et al., 2022, section
2.3): `<|startoftranscript|><|en|><|transcribe|>`, then times as `<|1.28|>`, or `<|notimestamps|>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.apis.audio.languages import LANGUAGES

START, BEFORE, NO_TIMES = "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>"
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
TASKS = {"transcribe": "<|transcribe|>", "translate": "<|translate|>"}
FIRST_TIME = "<|0.00|>"
TIME_STEP_S = 0.02
MAX_FIRST_TIME_S = 1.0
"""The maximum first time in a window: speech must begin within its first second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTokens:
    """The token ids of one checkpoint. `languages` maps a code ("en") to its token, empty for a
    monolingual model. `suppressed` are never generated, `suppressed_first` not as the first
    token."""

    start: int
    end: int
    before: int | None
    no_times: int
    no_speech: int | None
    first_time: int
    tasks: Mapping[str, int]
    languages: Mapping[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]

    def prompt(self, language: str | None, task: str, *, has_times: bool) -> tuple[int, ...]:
        """Return the start of the decoder's prompt. Raises: RequestError"""
        ids = [self.start]
        if self.languages:
            if language is None or language not in self.languages:
                raise RequestError(
                    f'this model does not know the language "{language}".',
                    where="language",
                    fix=f"use a code of ISO-639-1: {', '.join(sorted(self.languages))}.",
                )
            ids.append(self.languages[language])
        if task in self.tasks:
            ids.append(self.tasks[task])
        elif task != "transcribe":
            raise RequestError("this model does not translate.", where="model")
        return tuple(ids if has_times else [*ids, self.no_times])

    def rules(self, *, has_times: bool) -> dict[str, Any]:
        """Return the options of the logits processor `speech_times`."""
        return {
            "first_time": self.first_time if has_times else None,
            "end": self.end,
            "no_times": self.no_times,
            "most_first": round(MAX_FIRST_TIME_S / TIME_STEP_S),
            "suppressed": list(self.suppressed),
            "suppressed_first": list(self.suppressed_first),
        }


def speech_tokens(spec: EngineSpec, tokenizer: Tokenizer) -> SpeechTokens:
    """Return the tokens of a checkpoint. Raises: RequestError if one is missing"""
    path = Path(spec.run.model.path)
    generation = read_json(path / "generation_config.json", is_required=False)
    config = spec.run.model.hf_config
    languages = {
        code: found for code in LANGUAGES if (found := _id(tokenizer, f"<|{code}|>")) is not None
    }
    tasks = {
        task: found for task, text in TASKS.items() if (found := _id(tokenizer, text)) is not None
    }
    is_multilingual = generation.get("is_multilingual", bool(languages)) is not False
    no_times = _needed(tokenizer, NO_TIMES)
    first_time = _id(tokenizer, FIRST_TIME)
    quiet = (_id(tokenizer, text) for text in NO_SPEECH)
    return SpeechTokens(
        start=_needed(tokenizer, START),
        end=spec.run.model.eos_token_ids[0],
        before=_id(tokenizer, BEFORE),
        no_times=no_times,
        no_speech=next((one for one in quiet if one is not None), None),
        first_time=no_times + 1 if first_time is None else first_time,
        tasks=tasks if is_multilingual else {},
        languages=languages if is_multilingual else {},
        suppressed=_ids(generation, config, "suppress_tokens"),
        suppressed_first=_ids(generation, config, "begin_suppress_tokens"),
    )


def _ids(generation: Mapping[str, Any], config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = generation.get(name, config.get(name)) or ()
    size = int(config["vocab_size"])
    return tuple(one for one in found if isinstance(one, int) and 0 <= one < size)


def _id(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the id of a text that is a single token; None if it is several."""
    ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids[0] if len(ids) == 1 else None


def _needed(tokenizer: Tokenizer, text: str) -> int:
    found = _id(tokenizer, text)
    if found is None:
        raise RequestError(
            f"the tokenizer of this model has no token {text}.",
            where="model",
            fix="serve a checkpoint that has the tokens of speech.",
            status=501,
        )
    return found
