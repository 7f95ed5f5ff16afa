"""Management: what the endpoints that change a gateway's models share."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from dovetail.errors import RequestError
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.manage.access import Access
from dovetail_plugins.gateway.manage.pulls import Pulls


class Management:
    """The fleet, who may change it, and the downloads. `lock` is held during changes of the
    stores; `quantizing` while a model is quantized, which takes all cores."""

    def __init__(self, fleet: Fleet, access: Access) -> None:
        self.fleet = fleet
        self.access = access
        self.lock = asyncio.Lock()
        self.quantizing = asyncio.Lock()
        self.pulls = Pulls()

    @property
    def catalogue(self) -> Catalogue:
        """Return this machine's models. Raises: RequestError if requests may not name them"""
        if self.fleet.catalogue is None:
            raise RequestError(
                "this server offers only the models that were named when it started.",
                fix="start it with --models any.",
                code="not_supported",
            )
        return self.fleet.catalogue

    async def let_go(self, name: str) -> None:
        """Unload a model of the catalogue, after its requests have ended, and take it out of the
        fleet: its settings are read again when a request names it."""
        model = self.fleet.known(name)
        if model is not None:
            await self.fleet.let_go(model)
            if not model.is_resident:
                self.fleet.leave(model)


def management_of(request: Request) -> Management:
    """Return the management of a request's server."""
    found: Management = request.app.state.server.management
    return found
