"""Fleet: several models, loaded when requested and unloaded when idle or in the way.

With a catalogue, any model of this machine joins the fleet when a request first names it.

One task at a time changes a model's state (`Model.change`); requests wait for it, up to a limit.
Memory is freed for one model after another, least recently used first. A model leaves memory only
when no request runs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Self

from dovetail.errors import ConfigError, DovetailError, Overloaded, RequestError, model_not_found
from dovetail.interfaces.model_store import StoredModel
from dovetail.observability.supervise import supervised
from dovetail_plugins.apis.ollama.models import LATEST
from dovetail_plugins.gateway import metrics
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.entries import ModelEntry
from dovetail_plugins.gateway.memory_need import MemoryNeed, free_beside, need_of
from dovetail_plugins.gateway.model import GatewayModel, ModelState
from dovetail_plugins.gateway.server import ModelFailed, Server

logger = logging.getLogger("dovetail_plugins.gateway")
WATCH_PERIOD_S = 0.1
"""How often a task that waits for room, or for a model's last answers, checks again."""
LOOK_PERIOD_S = 1.0
"""How often dead and idle models are looked for. A request checks its own model itself."""
SETTLED_S = 1.0
"""An idle model stays loaded at least this long, so that the requests that waited for it run
first."""

BUSY_TURN_S = 10.0
"""A busy model stays loaded at least this long before another may take its memory."""

LEAST_ROOM_WAIT_S = 60.0
"""Making room takes at most the longer of this and the requests' wait, so that other models get a
turn."""

RETRY_AFTER_S = 5.0


class Fleet:
    """All models. It is an async context manager that ends their servers at exit.

    `start` starts a model's server. `limit_bytes` limits the estimated need of loaded models; None:
    the limit is the free memory. `max_loaded` limits their number; 0: it does not. `catalogue` has
    the models that may join, whose need `measure` estimates.
    """

    is_alive = True
    death_reason: str | None = None

    def __init__(
        self,
        models: Sequence[GatewayModel],
        *,
        start: Callable[[ModelEntry], Server],
        wait_s: float,
        limit_bytes: int | None = None,
        max_loaded: int = 0,
        catalogue: Catalogue | None = None,
        measure: Callable[[ModelEntry], MemoryNeed] = need_of,
    ) -> None:
        self.models: tuple[GatewayModel, ...] = ()
        self._by_name: dict[str, GatewayModel] = {}
        self._have(models)
        self.catalogue = catalogue
        self.max_loaded = max_loaded
        self._measure = measure
        self._joining = asyncio.Lock()
        self._start = start
        self.wait_s = wait_s
        self.limit_bytes = limit_bytes
        self._room = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._is_over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._watch = supervised("models-watch", self._watch_models)
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.shutdown()

    async def find(self, name: str | None) -> GatewayModel:
        """Return the model with this name; the first model if there is none. The tag that Ollama's
        clients append may be present. Raises: NotFound; RequestError for a model that cannot be
        served"""
        if not name:
            return self._first()
        found = self.known(name)
        if found is None and self.catalogue is not None:
            async with self._joining:
                found = self.known(name) or await self._joined(self.catalogue, name)
        if found is None:
            raise model_not_found(name, await self._all_names())
        return found

    def known(self, name: str) -> GatewayModel | None:
        """Return the model of the fleet with this name, if there is one. A model whose files are
        gone leaves the fleet here, unless it is loaded. Mutates: self"""
        model = self._by_name.get(name) or self._by_name.get(name.removesuffix(LATEST))
        if model is None or model.is_resident:
            return model
        if model.entry.path is None or model.entry.path.exists():
            return model
        self.leave(model)
        return None

    async def others(self) -> list[StoredModel]:
        """Return the models of this machine that may join the fleet."""
        return [one for one in await self.stored() if self.known(one.name) is None]

    async def stored(self) -> tuple[StoredModel, ...]:
        """Return all models of this machine, if requests may name them."""
        return await asyncio.to_thread(self.catalogue.models) if self.catalogue else ()

    def leave(self, model: GatewayModel) -> None:
        """Take an unloaded model out of the fleet. Mutates: self"""
        self._have(one for one in self.models if one is not model)

    def _have(self, models: Iterable[GatewayModel]) -> None:
        """Make these the models of the fleet. Of two with an alias the first has it. Mutates:
        self"""
        self.models = tuple(models)
        self._by_name = {}
        for model in self.models:
            for name in model.entry.names_and_aliases:
                self._by_name.setdefault(name, model)

    def _first(self) -> GatewayModel:
        if not self.models:
            raise RequestError(
                "the request names no model, and no model is loaded.",
                where="model",
                fix="`dovetail list` shows the models of this machine; GET /v1/models lists them.",
            )
        return self.models[0]

    async def _joined(self, catalogue: Catalogue, name: str) -> GatewayModel | None:
        """Add a model of this machine to the fleet. Raises: RequestError if it cannot be served.
        Mutates: self"""
        stored = await asyncio.to_thread(catalogue.find, name)
        if stored is None:
            return None
        try:
            entry = await asyncio.to_thread(catalogue.entry, stored)
            model = GatewayModel(entry, await asyncio.to_thread(self._measure, entry))
        except ConfigError as error:
            raise RequestError(
                f'the model "{stored.name}" cannot be served: {error}', where="model"
            ) from error
        self._have((*self.models, model))
        logger.info("%s: %s", model.name, stored.path)
        return model

    async def _all_names(self) -> list[str]:
        others = [model.name for model in await self.others()]
        return [name for model in self.models for name in model.entry.every_name] + others

    async def load_at_start(self) -> None:
        """Load the models with `loads_at_start`, in order. A failure is logged, and requests for
        the model try again."""
        for model in self.models:
            if model.entry.loads_at_start:
                with contextlib.suppress(RequestError):  # logged where it is raised
                    await self._ready(model, math.inf)

    @contextlib.asynccontextmanager
    async def lease(self, model: GatewayModel) -> AsyncIterator[Server]:
        """Yield the loaded model's server, which stays loaded during the block. Raises: Overloaded
        if it cannot be loaded, or not in time"""
        server = await self._ready(model, self.wait_s)
        model.num_running += 1
        metrics.OPEN.labels(model.name).inc()
        try:
            yield server
        finally:
            model.num_running -= 1
            metrics.OPEN.labels(model.name).dec()
            model.used()

    async def wait_end(self) -> None:
        """Return after shutdown. A fleet does not end when its models do."""
        await self._is_over.wait()

    async def shutdown(self) -> None:
        """End every model's server, and everything running on it."""
        self.is_alive = False
        self._is_over.set()
        changes = [model.change for model in self.models if model.change is not None]
        tasks = [*changes, *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        servers = [model.server for model in self.models if model.server is not None]
        for model in self.models:
            model.server, model.state = None, ModelState.UNLOADED
        await asyncio.gather(*(server.stop() for server in servers), *self._endings)

    async def _ready(self, model: GatewayModel, wait_s: float) -> Server:
        """Return the server of the model, loaded if needed. Raises: Overloaded"""
        if model.state is ModelState.LOADED and self._lives(model):
            assert model.server is not None
            return model.server
        model.num_waiting += 1
        metrics.WAITING.labels(model.name).inc()
        try:
            async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                return await self._once_loaded(model)
        except TimeoutError:
            raise Overloaded(
                f'the model "{model.name}" was not loaded within {wait_s:g} s.',
                retry_after_s=RETRY_AFTER_S,
            ) from None
        finally:
            model.num_waiting -= 1
            metrics.WAITING.labels(model.name).dec()

    async def _once_loaded(self, model: GatewayModel) -> Server:
        while not (model.state is ModelState.LOADED and self._lives(model)):
            if model.change is None and model.state is ModelState.ASLEEP and self._room.locked():
                async with self._room:  # the task that makes room may take its memory
                    continue
            if model.change is None:
                self._begin(model)
            assert model.change is not None
            error = await asyncio.shield(model.change)
            if error is not None:
                raise error
        assert model.server is not None
        return model.server

    def _begin(self, model: GatewayModel) -> None:
        """Start loading or waking a model. Raises: Overloaded during the pause after repeated
        deaths"""
        if not self.is_alive:
            raise Overloaded("the server is shutting down.")
        if model.state is ModelState.ASLEEP:
            self._change(model, self._wake(model))
            return
        pause_s = model.may_start_s - time.monotonic()
        if pause_s > 0:
            raise Overloaded(
                f'the model "{model.name}" has ended {model.num_deaths} times and is started again '
                f"in {math.ceil(pause_s)} s: {model.last_death}",
                retry_after_s=pause_s,
            )
        self._change(model, self._load(model))

    def _change(
        self, model: GatewayModel, change: Coroutine[Any, Any, RequestError | None]
    ) -> None:
        """Run a task that changes a model. Mutates: model"""

        async def run() -> RequestError | None:
            try:
                return await change
            finally:
                model.change = None

        assert model.change is None, "one change at a time"
        model.change = asyncio.ensure_future(run())

    async def _load(self, model: GatewayModel) -> RequestError | None:
        began_s = time.monotonic()
        try:
            async with self._room_for(model):
                model.state = ModelState.LOADING
                model.server = self._start(model.entry)
            await model.server.wait_ready()
            await self._read_card(model)
        except Exception as error:
            return self._failed(model, error)
        self._loaded(model, "loaded", began_s)
        return None

    async def _wake(self, model: GatewayModel) -> RequestError | None:
        began_s = time.monotonic()
        assert model.server is not None
        try:
            async with self._room_for(model):
                model.state = ModelState.WAKING
            await _post(model.server, "/wake_up")
        except Exception as error:
            return self._failed(model, error)
        self._loaded(model, "woken", began_s)
        return None

    def _loaded(self, model: GatewayModel, how: str, began_s: float) -> None:
        model.state, model.loaded_s = ModelState.LOADED, time.monotonic()
        model.used()
        seconds = model.loaded_s - began_s
        logger.info("%s: %s in %.2f s", model.name, how, seconds)
        metrics.LOADS.labels(model.name, how).inc()
        metrics.LOAD_SECONDS.labels(model.name).observe(seconds)

    def _failed(self, model: GatewayModel, error: Exception) -> RequestError:
        """Record that a model could not be loaded; return the error for the waiting requests."""
        metrics.LOADS.labels(model.name, "failed").inc()
        if isinstance(error, Overloaded):
            logger.warning("%s: %s", model.name, error)
            return error  # there is no room, but the model is fine
        is_foreseen = isinstance(error, DovetailError | OSError | ValueError)
        stack = None if is_foreseen else error
        logger.error("%s could not be loaded: %s", model.name, error, exc_info=stack)
        self._end(model)
        model.died(str(error))
        return Overloaded(
            f'the model "{model.name}" could not be loaded: {error}', retry_after_s=RETRY_AFTER_S
        )

    async def _read_card(self, model: GatewayModel) -> None:
        """Store the model card from the model's server. Mutates: model"""
        assert model.server is not None
        cards = (await model.server.connections.request("GET", "/v1/models")).json().get("data", [])
        model.card = {key: value for key, value in cards[0].items() if key != "id"} if cards else {}

    # The methods below decide which model leaves memory.

    @contextlib.asynccontextmanager
    async def _room_for(self, model: GatewayModel) -> AsyncIterator[None]:
        """Run the block, which takes the memory, once there is enough. Raises: Overloaded"""
        async with self._room:
            try:
                async with asyncio.timeout(max(self.wait_s, LEAST_ROOM_WAIT_S)):
                    await self._make_room(model)
            except TimeoutError:
                raise Overloaded(
                    f'no memory became free for the model "{model.name}".',
                    retry_after_s=RETRY_AFTER_S,
                ) from None
            yield

    async def _make_room(self, model: GatewayModel) -> None:
        """Return once the model fits next to the loaded ones. Raises: Overloaded if it would not
        fit even alone"""
        while True:
            others = [one for one in self.models if one is not model and one.is_resident]
            if self.max_loaded and len(others) >= self.max_loaded:
                await self._let_one_go(others)
                continue
            room = await self._room_beside(model, others)
            if room is None or model.need.num_bytes <= room:
                return
            max_bytes = room + sum(one.need.num_bytes for one in others)
            if model.need.num_bytes > max_bytes:
                raise Overloaded(
                    f'the model "{model.name}" needs {_gib(model.need.num_bytes)}, and '
                    f"{_gib(max_bytes)} are free without the others.",
                    retry_after_s=RETRY_AFTER_S,
                )
            await self._let_one_go(others)

    async def _room_beside(self, model: GatewayModel, others: Sequence[GatewayModel]) -> int | None:
        rooms = []
        if self.limit_bytes is not None:
            taken = sum(one.need.num_bytes for one in others if one.state is not ModelState.ASLEEP)
            rooms.append(self.limit_bytes - taken)
        free = await free_beside(model.need, [one.to_come() for one in others])
        if free is not None:
            rooms.append(free)
        return min(rooms) if rooms else None

    async def _let_one_go(self, others: Sequence[GatewayModel]) -> None:
        """Unload the model that should leave first, or wait until one may leave."""
        found = leaving_first(others, time.monotonic())
        if found is None:
            await asyncio.sleep(WATCH_PERIOD_S)
            return
        self._unload(found, "room")
        assert found.change is not None
        await asyncio.shield(found.change)

    def let_go(self, model: GatewayModel) -> asyncio.Task[None]:
        """Unload a model once its requests have ended, also one that is being loaded. Return the
        task that ends when it is out of memory."""

        async def run() -> None:
            while model.change is not None:
                await asyncio.shield(model.change)
            if model.is_resident:
                self._unload(model, "asked")
            if model.change is not None:
                await asyncio.shield(model.change)

        task = asyncio.ensure_future(run())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _unload(self, model: GatewayModel, why: str) -> None:
        """Start to end a model's server once no request runs on it. Mutates: model"""
        model.state = ModelState.LEAVING
        self._change(model, self._ended(model, why))

    async def _ended(self, model: GatewayModel, why: str) -> None:
        while model.num_running and model.server is not None and model.server.status is None:
            await asyncio.sleep(WATCH_PERIOD_S)
        assert model.server is not None
        await self._stopped(model, model.server)
        model.server, model.state = None, ModelState.UNLOADED
        metrics.UNLOADS.labels(model.name, why).inc()
        logger.info("%s: unloaded (%s)", model.name, why)

    async def _asleep(self, model: GatewayModel) -> None:
        """Put a model to sleep; unload it if that fails."""
        assert model.server is not None
        try:
            await _post(model.server, f"/sleep?level={model.entry.sleep_level}&mode=wait")
        except Exception as error:
            logger.warning("%s does not sleep, and is unloaded: %s", model.name, error)
            await self._ended(model, "idle")
            return
        model.state = ModelState.ASLEEP
        metrics.UNLOADS.labels(model.name, "asleep").inc()
        logger.info("%s: asleep", model.name)

    async def _watch_models(self) -> None:
        """Notice dead models and put idle ones away, as long as the fleet lives."""
        while True:
            for model in self.models:
                if model.state in (ModelState.LOADED, ModelState.ASLEEP) and model.change is None:
                    self._lives(model)
                    self._put_away_if_idle(model, time.monotonic())
            await asyncio.sleep(LOOK_PERIOD_S)

    def _put_away_if_idle(self, model: GatewayModel, now_s: float) -> None:
        after_s = model.idle_after_s
        if after_s is None or model.state is not ModelState.LOADED or not model.is_idle:
            return
        if now_s - model.last_used_s < after_s:
            return
        if model.entry.sleep_level:
            model.state = ModelState.LEAVING
            self._change(model, self._asleep(model))
        else:
            self._unload(model, "idle")

    def _lives(self, model: GatewayModel) -> bool:
        """Return whether a model's server runs; record its death otherwise. Mutates: model"""
        assert model.server is not None
        status = model.server.status
        if status is None:
            return True
        logger.error("%s: its server ended with status %d", model.name, status)
        metrics.UNLOADS.labels(model.name, "died").inc()
        self._end(model)
        model.died(f"its server ended with status {status}.")
        return False

    async def _stopped(self, model: GatewayModel, server: Server) -> None:
        """End a server; failures are logged."""
        try:
            await server.stop()
        except Exception as error:
            logger.error("%s: its server did not end in order", model.name, exc_info=error)

    def _end(self, model: GatewayModel) -> None:
        """Detach a model's server and end it in the background. Mutates: model"""
        server, model.server, model.state = model.server, None, ModelState.UNLOADED
        if server is not None:
            task = asyncio.ensure_future(self._stopped(model, server))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)


def leaving_first(models: Sequence[GatewayModel], now_s: float) -> GatewayModel | None:
    """Return the model that should leave memory first: a sleeping, an idle, or a busy one that has
    had its turn; least recently used first. None if no model may leave."""
    able = [one for one in models if one.change is None and not one.entry.is_pinned]
    asleep = [one for one in able if one.state is ModelState.ASLEEP]
    loaded = [one for one in able if one.state is ModelState.LOADED]
    idle = [one for one in loaded if one.is_idle and now_s - one.loaded_s >= SETTLED_S]
    busy = [one for one in loaded if now_s - one.loaded_s >= BUSY_TURN_S]
    for group in (asleep, idle, busy):
        if group:
            return min(group, key=lambda one: one.last_used_s)
    return None


async def _post(server: Server, path: str) -> None:
    """Call a path of a model's server. Raises: ModelFailed, ConnectionError"""
    answer = await server.connections.request("POST", path)
    if answer.status != 200:
        raise ModelFailed(f"POST {path} was answered {answer.status}: {answer.text[:200]}")


def _gib(num_bytes: int) -> str:
    return f"{max(0, num_bytes) / 2**30:.2f} GiB"
