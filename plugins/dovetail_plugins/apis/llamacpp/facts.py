"""GET /props and /lora-adapters, POST /apply-template: the server's facts, its templates.

Source: the API page of llama.cpp's server.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Request

from dovetail.interfaces.api import GENERATE
from dovetail.interfaces.data.media_settings import AUDIO, IMAGE, VIDEO
from dovetail.server.endpoint import CHAT_NAMES, ChatRequest, ServerOf, in_words_of
from dovetail.version import __version__
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis.llamacpp.errors import not_supported
from dovetail_plugins.apis.llamacpp.prompts import MARKER
from dovetail_plugins.apis.llamacpp.protocol import CompletionRequest, LoraScale
from dovetail_plugins.apis.llamacpp.settings import generation_settings, scaled_adapter


async def show_props(server: ServerOf) -> dict[str, Any]:
    """Return the server's facts, and the settings of answers whose request sets none."""
    spec = server.engine.spec
    kinds = frozenset() if spec.media is None else spec.media.part_kinds
    name = spec.model_names[0]
    settings: dict[str, Any] = {}
    if GENERATE in server.tasks:
        params = server.engine.default_params()
        settings = generation_settings(params, CompletionRequest(max_tokens=params.max_tokens))
    templates = server.text.renderer.templates
    return {
        "default_generation_settings": {
            "id": 0,
            "n_ctx": spec.run.max_model_tokens,
            "speculative": spec.run.acceptance is not None,
            "is_processing": False,
            "params": settings,
        },
        "total_slots": spec.total_rows,
        "model_alias": name,
        "model_path": name,
        "chat_template": templates.get("default") or server.text.renderer.source,
        "modalities": {"vision": IMAGE in kinds, "video": VIDEO in kinds, "audio": AUDIO in kinds},
        "media_marker": MARKER,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "build_info": f"dovetail-{__version__}",
        "is_sleeping": bool(server.engine.asleep),
    }


async def change_props(request: Request) -> None:
    """Refuse: the settings of a server do not change while it runs."""
    await request.body()  # of a client that is still there
    raise not_supported(
        "a server's settings do not change while it runs.", fix="start it with other flags."
    )


async def apply_template(body: ChatRequest, server: ServerOf) -> Any:
    """Return a conversation as the text that the model reads."""
    text, _ = await server.text_for(body.model)
    ignored = server.fields.check(body, known=("messages.",), is_answered=False)
    with in_words_of(CHAT_NAMES):
        rendered = await text.render(body)
    ignored += server.fields.report(rendered.unused)
    return raw_reply({"prompt": rendered.text}, ignored)


async def list_adapters(server: ServerOf) -> list[dict[str, Any]]:
    """Return the adapters. A request uses one if it names it, so that their scale is 0."""
    sources = await server.adapters.all()
    return [
        {"id": number, "path": source.path, "name": source.name, "scale": 0.0}
        for number, source in enumerate(sources)
    ]


async def scale_adapters(
    server: ServerOf, body: Annotated[list[LoraScale], Body()]
) -> dict[str, bool]:
    """Accept the scale 0 for every adapter; refuse others, which each request chooses itself."""
    names = [source.name for source in await server.adapters.all()]
    if scaled_adapter(body, names, "scale") is not None:
        raise not_supported(
            "an adapter is not applied to all requests.",
            where="scale",
            fix="name it as the model of a request, or by the field lora of /completion.",
        )
    return {"success": True}
