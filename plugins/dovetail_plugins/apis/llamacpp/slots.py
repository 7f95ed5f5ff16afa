"""GET /slots and POST /slots/{id}: the requests that run, and why their prompts are not saved.

A slot here is one of the sequences that run at the same time, without its own memory: all requests
share one cache of prefixes. Source: the API page of llama.cpp's server.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends
from starlette.responses import JSONResponse, Response

from dovetail.errors import RequestError
from dovetail.server.endpoint import App, ServerOf, Step, problem, state_of
from dovetail_plugins.apis.llamacpp.errors import error_body, not_supported
from dovetail_plugins.apis.llamacpp.protocol import SlotRequest

HIDDEN = frozenset({"stop", "grammar", "logit_bias", "dry_sequence_breakers"})
"""Settings with words of a client's, which others do not see."""
NO_SLOT = -1
"""The slot of a request that waits for one."""


@dataclass(slots=True, kw_only=True)
class SlotUse:
    """A prompt in a slot. `num_decoded` is how many tokens it has generated so far."""

    slot: int
    task: int
    settings: Mapping[str, Any]
    num_decoded: int = 0
    has_new_line: bool = False

    async def watched(self, steps: AsyncGenerator[Step, None]) -> AsyncGenerator[Step, None]:
        """Yield the steps of the prompt and count their tokens; closing this closes them. Mutates:
        self"""
        async with aclosing(steps):
            async for step in steps:
                self.num_decoded = step.num_generated_tokens
                self.has_new_line |= "\n" in step.text
                yield step


@dataclass(slots=True, kw_only=True)
class Slots:
    """The prompts of this family that run in this process, by slot."""

    running: dict[int, SlotUse] = field(default_factory=dict)
    _tasks: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def used(
        self, num_slots: int, num: int, settings: Mapping[str, Any]
    ) -> Iterator[list[SlotUse]]:
        """Give `num` prompts the first free slots; the others wait. Mutates: self"""
        free = (slot for slot in range(num_slots) if slot not in self.running)
        uses = [
            SlotUse(slot=slot, task=next(self._tasks), settings=settings)
            for slot in itertools.islice(itertools.chain(free, itertools.repeat(NO_SLOT)), num)
        ]
        by_slot = {use.slot: use for use in uses if use.slot != NO_SLOT}
        self.running |= by_slot
        try:
            yield uses
        finally:
            for slot in by_slot:
                del self.running[slot]


SlotsOf = Annotated[Slots, Depends(state_of(Slots))]


async def list_slots(server: ServerOf, slots: SlotsOf, fail_on_no_slot: int = 0) -> Response:
    """Return the slots, with the settings of the requests of this family that run in them."""
    num_slots = server.engine.spec.total_rows
    num_running, _ = server.engine.load()
    if fail_on_no_slot and num_running >= num_slots:
        return _no_slot()
    num_others = max(num_running - len(slots.running), 0)
    shown = []
    for slot in range(num_slots):
        use = slots.running.get(slot)
        is_other = use is None and num_others > 0
        num_others -= is_other
        shown.append(_slot(server, slot, use, is_busy=use is not None or is_other))
    return JSONResponse(shown)


def _no_slot() -> Response:
    found = problem(503, "no slot available.")
    return Response(error_body(503, found.info), status_code=503, media_type="application/json")


def _slot(server: App, slot: int, use: SlotUse | None, *, is_busy: bool) -> dict[str, Any]:
    run = server.engine.spec.run
    facts = {
        "id": slot,
        "n_ctx": run.max_model_tokens,
        "speculative": run.acceptance is not None,
        "is_processing": is_busy,
    }
    if use is None:
        return facts
    n_predict = use.settings["n_predict"]
    return facts | {
        "id_task": use.task,
        "params": {name: use.settings[name] for name in use.settings if name not in HIDDEN},
        "next_token": {
            "has_next_token": True,
            "has_new_line": use.has_new_line,
            "n_remain": n_predict if n_predict < 0 else max(n_predict - use.num_decoded, 0),
            "n_decoded": use.num_decoded,
        },
    }


STORES = (
    'start the server with --kv-transfer-config and the connector "shared_storage", which writes '
    "prefixes to files and finds them again."
)
ACTIONS = {
    "save": STORES,
    "restore": STORES,
    "erase": "send cache_prompt false with a request, or POST /reset_prefix_cache to a server with "
    "--enable-dev-endpoints, which drops the prefixes of all requests.",
}
"""Action -> what to do instead."""


async def change_slot(
    id_slot: int, server: ServerOf, action: str = "", body: SlotRequest | None = None
) -> None:
    """Refuse to save, restore or erase the cache of one slot, which does not have its own."""
    if not 0 <= id_slot < server.engine.spec.total_rows:
        raise RequestError(f"there is no slot {id_slot}.", where="id_slot")
    if action not in ACTIONS:
        raise RequestError(f"must be {', '.join(ACTIONS)}.", where="action")
    raise not_supported(
        "a slot does not have its own cache: all requests share the prefixes that are cached.",
        where=f"action={action}",
        fix=ACTIONS[action],
    )
