"""What requests may ask of a model, in the words of Ollama's and of OpenAI's lists.

A server knows it of its engine, a gateway by the files of a model that is not loaded: both fill the
same fields, and the words follow from them here.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.errors import RequestError
from dovetail.interfaces.api import TRANSCRIBE
from dovetail.interfaces.data.media_settings import AUDIO, IMAGE, VIDEO
from dovetail.interfaces.data.pooling_params import EMBED
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.server.endpoint import App
from dovetail_plugins.apis._infill import infill_of
from dovetail_plugins.apis._pool.scores import can_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a model can do. `pools`: the tasks of one that only pools; `knows_tools`: its template
    has a place for tools; `calls`, `thinks`: there is a parser for calls and for thoughts."""

    pools: tuple[str, ...] = ()
    transcribes: bool = False
    chats: bool = False
    knows_tools: bool = False
    calls: bool = False
    thinks: bool = False
    is_bound: bool = False
    fills_in: bool = False
    media: frozenset[str] = frozenset()

    def for_ollama(self) -> list[str]:
        """Return the words of Ollama's /api/show, which has none for classification."""
        if self.pools or self.transcribes:
            return ["embedding"] if EMBED in self.pools else []
        can = {
            "completion": True,
            "tools": self.calls and self.knows_tools,
            "thinking": self.thinks,
            "vision": IMAGE in self.media,
            "insert": self.fills_in,
        }
        return [name for name, is_able in can.items() if is_able]

    def for_openai(self) -> list[str]:
        """Return the words of /v1/models; for a pooling model, its tasks."""
        if self.transcribes:
            return [TRANSCRIBE]
        if self.pools:
            return list(self.pools)
        can = {
            "completion": True,
            "chat": self.chats,
            "tools": self.calls,
            "reasoning": self.thinks,
            "structured_output": self.is_bound,
            "vision": IMAGE in self.media,
            "video": VIDEO in self.media,
            "audio": AUDIO in self.media,
        }
        return [name for name, is_able in can.items() if is_able]


def capabilities_of(
    spec: EngineSpec, *, source: str, chats: bool, calls: bool, thinks: bool, fills_in: bool
) -> Capabilities:
    """Return what a resolved model can do; `source` is the text of its chat templates."""
    pooling, encoder, media = spec.run.pooling, spec.run.model.encoder, spec.media
    scores = ("score",) if pooling is not None and can_score(pooling) else ()
    return Capabilities(
        pools=(*pooling.tasks, *scores) if pooling is not None else (),
        transcribes=encoder is not None and encoder.kind == "audio",
        chats=chats,
        knows_tools="tools" in source or ".Tools" in source,
        calls=calls,
        thinks=thinks,
        is_bound=spec.has_tokenizer and spec.run.structured_output is not None,
        fills_in=fills_in,
        media=frozenset(() if media is None else media.kinds),
    )


def capabilities_of_server(server: App) -> Capabilities:
    """Return what a server's model can do."""
    text = server.text
    return capabilities_of(
        server.engine.spec,
        source=text.renderer.source,
        chats=text.renderer.can_render,
        calls=text.parsers.tool is not None,
        thinks=text.parsers.reasoning is not None,
        fills_in=server.engine.spec.has_tokenizer and _can_fill_in(server),
    )


def _can_fill_in(server: App) -> bool:
    try:
        infill_of(server.engine.tokenizer)
    except RequestError:
        return False
    return True
