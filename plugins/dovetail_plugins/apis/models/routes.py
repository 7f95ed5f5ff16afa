"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from dovetail.errors import NotFound
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import App, ServerOf
from dovetail_plugins.apis._anthropic_lists import page_of
from dovetail_plugins.apis._capabilities import capabilities_of_server
from dovetail_plugins.apis._weights import version_of
from dovetail_plugins.apis.models.anthropic import is_asked, model_of
from dovetail_plugins.apis.models.protocol import ModelCard, ModelList


async def list_models(request: Request, server: ServerOf) -> Any:
    """Return all served names, including adapters. Clients of Anthropic's API get its shape."""
    cards = [_card(server, name) for name in server.engine.spec.model_names]
    cards += [_adapter_card(server, source) for source in await server.adapters.all()]
    if is_asked(request):
        return page_of([model_of(card) for card in cards], request.query_params)
    return ModelList(data=cards)


async def show_model(model_id: str, request: Request, server: ServerOf) -> Any:
    """Return one served name. Clients of Anthropic's API get its shape."""
    if not model_id:
        raise NotFound("the path names no model.", where="model")
    name = await server.model_name(model_id)
    adapter = server.engine.spec.adapter_of(name)
    source = await server.adapters.find(adapter) if adapter else None
    card = _card(server, name) if source is None else _adapter_card(server, source)
    return model_of(card) if is_asked(request) else card


def _adapter_card(server: App, source: AdapterSource) -> ModelCard:
    """Return the card of an adapter, with its folder and its base model."""
    parent = source.base or server.engine.spec.model_names[0]
    return _card(server, source.name).model_copy(update={"root": source.path, "parent": parent})


def _card(server: App, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=server.created_s,
        root=server.engine.spec.model_names[0],
        max_model_len=server.engine.spec.run.max_model_tokens,
        capabilities=capabilities_of_server(server).for_openai(),
        weights_version=version_of(server.engine),
    )


class ModelsApi(Api):
    """The served names."""

    info = Info(summary="the names of the served model", source="the OpenAI API reference")
    routes = (
        Route(method="GET", path="/v1/models", endpoint=list_models),
        Route(method="GET", path="/v1/models/{model_id:path}", endpoint=show_model),
    )
