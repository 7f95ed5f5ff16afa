"""Talk: the part of a session that answers: its conversation, and the answers that are wanted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import HTTPConnection

from dovetail.errors import RequestError
from dovetail.interfaces.api import TRANSCRIBE
from dovetail.server.endpoint import App
from dovetail_plugins.apis.realtime.answers import Answer, Send, write
from dovetail_plugins.apis.realtime.conversation import Conversation
from dovetail_plugins.apis.realtime.items import Item
from dovetail_plugins.apis.realtime.protocol import Format, Respond, TalkSettings
from dovetail_plugins.apis.realtime.sound import samples_of
from dovetail_plugins.apis.realtime.words import new_id

MAX_ID_CHARS = 128


def check_hears(server: App, where: str) -> None:
    """Raise RequestError if the model takes no sound."""
    if TRANSCRIBE not in server.tasks:
        what = "the served model cannot hear."
        raise RequestError(what, where=where, fix="send text.", code="task_not_supported")


class Talk:
    """The items of a session, and its answers in their order, from being wanted to their end. `put`
    queues an answer to be written."""

    def __init__(self, server: App, max_bytes: int, put: Callable[[Answer], None]) -> None:
        self._server = server
        self.items = Conversation(max_bytes)
        self._put = put
        self._answers: list[Answer] = []

    def read_item(self, item: Item, where: str, form: Format) -> Item:
        """Return an item with an id, and with samples of 16 bits. Raises: RequestError"""
        parts = []
        for part in item.content:
            if part.audio is not None:
                check_hears(self._server, f"{where}.content")
                samples = samples_of(part.audio, form).astype("<i2", copy=False)
                part = msgspec.structs.replace(part, audio=samples.tobytes())
            parts.append(part)
        name = item.id[:MAX_ID_CHARS] or new_id("item")
        return msgspec.structs.replace(item, id=name, content=tuple(parts), rate_hz=form.rate)

    def ask(self, event: Respond, settings: TalkSettings, form: Format) -> None:
        """Begin an answer that the client asks for. Raises: RequestError if another one has not
        ended. Mutates: self"""
        if self._answers:
            what = f"the answer {self._answers[0].id} has not ended."
            code = "conversation_already_has_active_response"
            raise RequestError(what, fix="wait for response.done, or cancel it.", code=code)
        if (given := event.response.input) is not None:
            items = tuple(self.read_item(one, "response.input", form) for one in given)
            wanted = msgspec.structs.replace(event.response, input=items)
            event = msgspec.structs.replace(event, response=wanted)
        self.begin(event, settings)

    def begin(self, event: Respond, settings: TalkSettings) -> None:
        """Begin an answer, after those that are wanted already. Mutates: self"""
        answer = Answer(wanted=event, settings=settings)
        self._answers.append(answer)
        self._put(answer)

    def cancel(self, answer_id: str | None) -> None:
        """End an answer that the client does not want. Raises: RequestError. Mutates: answers"""
        if not any(answer_id in (None, one.id) for one in self._answers):
            raise RequestError(
                "there is no such answer in progress.",
                where="response_id",
                code="response_cancel_not_active",
            )
        self.stop("client_cancelled", answer_id)

    def stop(self, reason: str, answer_id: str | None = None) -> None:
        """End one answer, or all. Mutates: answers"""
        for one in self._answers:
            if answer_id in (None, one.id):
                one.stopped_by = reason

    async def write(self, answer: Answer, socket: HTTPConnection, model: str, send: Send) -> None:
        """Write an answer of the queue. Mutates: self"""
        name = answer.settings.model or model
        try:
            await write(answer, self.items, self._server, socket, name, send)
        finally:
            self._answers.remove(answer)
