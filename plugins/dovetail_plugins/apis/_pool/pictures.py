"""Images among the inputs of a pooling request, read one by one when their turn comes.

Jina's clients send `{"image": URL or base64}` among texts, OpenAI's and Cohere's the parts of a
message. Addresses follow the server's rules for media (`multimodal.loader`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.engine.client.requests.input_processor import Prompt
from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import IMAGE
from dovetail.multimodal.content import MediaItem
from dovetail.multimodal.given import as_medium
from dovetail.multimodal.parts import media_item, media_type
from dovetail.multimodal.prompt import MediaPrompt
from dovetail.server.endpoint import ChatRequest, Message, ModelText
from dovetail.unsupported import sentence

Part = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """An image alone, or parts with one for the chat template (`chat`), not read yet."""

    text: ModelText
    item: MediaItem | None = None
    chat: ChatRequest | None = None

    async def read(self) -> Prompt:
        """Return the prompt. Raises: RequestError"""
        text = self.text
        if self.chat is not None:
            return await text.read(await text.render(self.chat), self.chat)
        assert self.item is not None and text.media is not None, "of_parts has checked"
        loaded = await text.media.load([self.item])
        prompt = MediaPrompt(text="", media=tuple(as_medium(one) for one in loaded))
        return await text.engine.read(prompt, text.adapter)


Input = Prompt | Picture


def is_alone(text: ModelText) -> bool:
    """Return whether a prompt of the model is a text or one image, without a chat template."""
    return facts_of(text.engine.spec.run.model.whole_config).media_alone


def of_parts(text: ModelText, parts: Sequence[Part], where: str) -> str | Picture:
    """Return an input that is sent in parts: its text, or the image. Raises: RequestError for
    several images, or for text beside one"""
    texts, items = _split(parts, where)
    if not items:
        return "".join(texts)
    if text.media is None:
        raise RequestError(sentence("media"), where=items[0].where, code="unsupported_media")
    if not is_alone(text):
        content = [one if isinstance(one, str) else dict(one) for one in parts]
        message = Message.model_validate({"role": "user", "content": content})
        fields: dict[str, Any] = {"messages": [message], "add_generation_prompt": False}
        return Picture(text=text, chat=ChatRequest.model_construct(**fields))
    if len(items) > 1 or any(one.strip() for one in texts):
        raise RequestError(
            "a prompt of this model is a text or one image, never both.",
            where=where,
            fix="send them in separate inputs.",
            code="unsupported_media",
        )
    return Picture(text=text, item=items[0])


def as_image(image: str) -> dict[str, Any]:
    """Return an image of Jina's API, a URL or bare base64, as a part of a message."""
    is_url = image[:8].partition(":")[0].lower() in ("http", "https", "data", "file")
    url = image if is_url else f"data:;base64,{image}"
    return {"type": "image_url", "image_url": {"url": url}}


def _split(parts: Sequence[Part], where: str) -> tuple[list[str], list[MediaItem]]:
    """Return the texts and the images of parts. Raises: RequestError"""
    texts: list[str] = []
    items: list[MediaItem] = []
    for place, part in enumerate(parts):
        at = f"{where}[{place}]" if len(parts) > 1 else where
        if isinstance(part, str):
            texts.append(part)
        elif part.get("text") is not None:
            texts.append(str(part["text"]))
        elif media_type(part) is None:
            raise RequestError("a part has a text or an image.", where=at)
        else:
            items.append(media_item(part, at))
            if items[-1].modality != IMAGE:
                what = "only images are taken here."
                raise RequestError(what, where=at, code="unsupported_media")
    return texts, items
