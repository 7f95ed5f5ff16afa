"""Transcription by a chat model that hears: it is asked once, about the whole recording.

A model family trained to transcribe is asked in the words of its training, any other in plain ones.
The answer is greedy text without times. Source: the families' processors in transformers, and
Mistral's description of Voxtral's transcription mode.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import AUDIO
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.multimodal.content import MediaItem, Sound
from dovetail.multimodal.given import as_medium
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt
from dovetail.server.endpoint import App, ChatRequest, ModelText
from dovetail_plugins.apis.audio.form import JSON, TEXT, URL, AudioFile, AudioRequest
from dovetail_plugins.apis.audio.languages import LANGUAGES
from dovetail_plugins.apis.audio.windows import Segment

PLAIN = "Transcribe the speech into text. Write nothing else."
TRANSLATE = "Translate the speech into English. Write nothing else."
QUESTIONS: Mapping[str, str] = {
    "audioflamingo3": "Transcribe the input speech.",
    "glmasr": "Please transcribe this audio into text",
    "phi4_multimodal": "Transcribe the audio clip into text.",
}
"""The question that a family was trained with, by its model_type."""
MARKED: Mapping[str, str] = {"voxtral": "[INST]{sound}[/INST]{language}[TRANSCRIBE]"}
"""Families that are asked by special tokens in place of a conversation."""
_SPOKEN = re.compile(
    r"""The (?:spoken content|transcription) of the audio is:?\s*(["'])(?P<text>.*)\1\.?""",
    re.DOTALL,
)
FRAMED = ("audioflamingo3", "glmasr")
"""Families that may put a transcript into a sentence; it is taken out, so a stream is one piece."""


@dataclass(slots=True, kw_only=True)
class ChatListener:
    """One recording, and the prompt that asks for its text. Units: duration_s"""

    engine: AsyncEngine
    prompt: PlacedPrompt
    duration_s: float
    request: AudioRequest
    request_id: str
    is_framed: bool
    adapter: str = ""
    language: str | None = None

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """Yield the text as it is written, in segments without times. Raises: RequestError,
        RequestFault"""
        request = self.request
        temperature = request.temperatures[0]
        params = SamplingParams(temperature=temperature, seed=request.seed)
        outputs = self.engine.generate(
            self.prompt,
            params,
            self.request_id,
            adapter=self.adapter,
            is_whole=self.is_framed or not request.stream,
        )
        async with aclosing(outputs):
            async for output in outputs:
                text = output.deltas[0].text
                if text := without_frame(text) if self.is_framed else text:
                    yield _segment(text, self.duration_s, temperature)


def without_frame(text: str) -> str:
    """Return a transcript without the sentence that says that it is one."""
    found = _SPOKEN.fullmatch(text.strip())
    return text if found is None else found["text"]


def _segment(text: str, duration_s: float, temperature: float) -> Segment:
    return Segment(
        start=0.0,
        end=duration_s,
        text=text,
        token_ids=(),
        temperature=temperature,
        avg_logprob=0.0,
        compression_ratio=0.0,
        no_speech_prob=0.0,
        seek_s=0.0,
    )


async def chat_listener(
    server: App, body: AudioRequest, model: str, request_id: str
) -> ChatListener:
    """Return the recording as a prompt. Raises: RequestError"""
    if body.response_format not in (JSON, TEXT):
        raise RequestError(
            "this model writes text without times.",
            where="response_format",
            fix="use json or text.",
        )
    text, _ = await server.text_for(model)
    assert text.media is not None, "a model that hears says how sounds are read"
    (loaded,) = await text.media.load([_item(body.file)])
    assert isinstance(loaded.content, Sound)
    given = MediaPrompt(text=tuple(await _question(text, body)), media=(as_medium(loaded),))
    return ChatListener(
        engine=server.engine,
        prompt=await server.engine.read(given, text.adapter),
        duration_s=len(loaded.content.samples) / loaded.content.rate_hz,
        request=body,
        request_id=request_id,
        is_framed=model_type(server.engine.spec.run.model) in FRAMED,
        adapter=text.adapter,
        language=body.language,
    )


def _item(file: AudioFile) -> MediaItem:
    if file.url is not None:
        return MediaItem(kind=AUDIO, where=URL, url=file.url)
    return MediaItem(kind=AUDIO, where="file", data=base64.b64encode(file.data).decode())


async def _question(text: ModelText, body: AudioRequest) -> Sequence[int]:
    """Return the token ids of the question, with the word that marks the sound's place."""
    kind = model_type(text.engine.spec.run.model)
    if kind in MARKED and not body.is_translation:
        language = f"lang:{body.language}" if body.language else ""
        sound = text.engine.media_words[AUDIO]
        prompt = MARKED[kind].format(sound=sound, language=language)
        return await text.tokenize(prompt, add_special_tokens=True)
    message = {
        "role": "user",
        "content": [
            {"type": "audio_url", "audio_url": {"url": "data:,"}},
            {"type": "text", "text": question(kind, body)},
        ],
    }
    chat = ChatRequest.model_validate({"messages": [message]})
    return await text.tokenize_prompt(await text.render(chat), chat)


def question(kind: str, body: AudioRequest) -> str:
    """Return what a family is asked in words."""
    asked = TRANSLATE if body.is_translation else QUESTIONS.get(kind, PLAIN)
    if body.language and not body.is_translation:
        asked += f" The language is {LANGUAGES.get(body.language, body.language).capitalize()}."
    return f"{asked} {body.prompt}" if body.prompt else asked


def model_type(model: ModelSpec) -> str:
    """Return the model_type of a whole checkpoint."""
    return str((model.whole_config or model.hf_config).get("model_type", ""))
