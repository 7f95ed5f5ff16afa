"""GET /slots: the requests that run, and the last prompt of each slot, which can be saved.

A slot here is one of the sequences that run at the same time, without its own memory: all requests
share one cache of prefixes. Source: the API page of llama.cpp's server.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import Depends
from starlette.responses import JSONResponse, Response

from dovetail.server.endpoint import App, ServerOf, Step, problem, state_of
from dovetail_plugins.apis.llamacpp.errors import error_body

HIDDEN = frozenset({"stop", "grammar", "logit_bias", "dry_sequence_breakers"})
"""Settings with words of a client's, which others do not see."""
NO_SLOT = -1
"""The slot of a request that waits for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPrompt:
    """The tokens of a prompt and then of its first answer, for the model or adapter `model`."""

    model: str
    token_ids: Sequence[int]


@dataclass(slots=True, kw_only=True)
class SlotUse:
    """A prompt in a slot. `num_decoded` is how many tokens it has generated so far, `token_ids`
    those of its first answer. `prompt` None: another request could not use its prefix."""

    slot: int
    task: int
    settings: Mapping[str, Any]
    prompt: SlotPrompt | None = None
    token_ids: list[int] = field(default_factory=list)
    num_decoded: int = 0
    has_new_line: bool = False

    async def watched(self, steps: AsyncGenerator[Step, None]) -> AsyncGenerator[Step, None]:
        """Yield the steps of the prompt and count their tokens; closing this closes them. Mutates:
        self"""
        async with aclosing(steps):
            async for step in steps:
                self.num_decoded = step.num_generated_tokens
                self.has_new_line |= "\n" in step.text
                if step.index == 0 and self.settings["n_predict"]:
                    self.token_ids += step.token_ids
                yield step

    def last_prompt(self) -> SlotPrompt | None:
        """Return the prompt with its answer."""
        if self.prompt is None:
            return None
        return replace(self.prompt, token_ids=(*self.prompt.token_ids, *self.token_ids))


@dataclass(slots=True, kw_only=True)
class Slots:
    """The prompts of this family that run in this process, by slot, and the last one of each."""

    running: dict[int, SlotUse] = field(default_factory=dict)
    last: dict[int, SlotPrompt] = field(default_factory=dict)
    _tasks: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def used(
        self,
        num_slots: int,
        prompts: Sequence[SlotPrompt | None],
        settings: Mapping[str, Any],
        wanted: int = NO_SLOT,
    ) -> Iterator[list[SlotUse]]:
        """Give the prompts the free slots, from the `wanted` one on; the others wait.
        Mutates: self"""
        order = sorted(range(num_slots), key=lambda slot: (slot != wanted, slot))
        free = (slot for slot in order if slot not in self.running)
        slots = itertools.chain(free, itertools.repeat(NO_SLOT))
        uses = [
            SlotUse(slot=slot, task=next(self._tasks), settings=settings, prompt=prompt)
            for slot, prompt in zip(slots, prompts, strict=False)
        ]
        by_slot = {use.slot: use for use in uses if use.slot != NO_SLOT}
        self.running |= by_slot
        try:
            yield uses
        finally:
            for slot, use in by_slot.items():
                del self.running[slot]
                self.hold(slot, use.last_prompt())

    def hold(self, slot: int, prompt: SlotPrompt | None) -> None:
        """Note the last prompt of a slot, None if it cannot be saved. Mutates: self"""
        self.last.pop(slot, None)
        if prompt is not None:
            self.last[slot] = prompt


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
