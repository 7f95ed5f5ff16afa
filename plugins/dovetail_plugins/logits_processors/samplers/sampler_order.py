"""SamplerOrder: the samplers of a request in the order that it names, and a least number of tokens.

Sources: the API page of llama.cpp's server (`samplers`, `min_keep`), the parameters of
text-generation-webui (`sampler_priority`, `temperature_last`) and of KoboldCpp (`sampler_order`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, ProcessorContext, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.logits_processors.samplers import _order, _steps
from dovetail_plugins.logits_processors.samplers._sampler import ORDERED

if TYPE_CHECKING:
    import torch


KEEP = "min_keep"


class SamplerOrder(LogitsProcessor):
    """Does all steps of such a request but the draw, before the temperature. A request whose order
    changes nothing, because few of its samplers do anything, is left to the sampler."""

    info = Info(
        summary="the samplers in the order that a request names",
        source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
    )
    stage = "before_temperature"
    rank = 2
    claims = _order.FIELDS

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, tuple[list[str], int]] = {}
        made = _steps.steps().items()
        self._steps = {name: cls(options, vocab_size) for name, cls in made}

    def set_up(self, context: ProcessorContext) -> None:
        """Set the samplers up."""
        for step in self._steps.values():
            step.set_up(context)

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request names an order, or its own least number of tokens."""
        extra = params.extra_args
        if not extra:
            return False
        sent = [name for name in cls.claims if _order.is_sent(extra.get(name))]
        if sent == [KEEP]:  # one token is always left
            return extra[KEEP] is True or extra[KEEP] not in (0, 1)
        return ORDERED in extra or bool(sent)

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Check the fields. Raises: RequestError"""
        _order.wish_of(params.extra_args)

    @classmethod
    def prepared(cls, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params without the samplers that the order leaves out, and those of the rest
        in `extra_args` if the order matters."""
        names, off, min_keep = _order.wish_of(params.extra_args)
        extra = {n: v for n, v in params.extra_args.items() if n not in cls.claims}
        params = msgspec.structs.replace(params, extra_args=extra)
        params = msgspec.structs.replace(params, **_steps.without(params, off))
        fields = _steps.taken_apart(params)
        apart = _as_sent(msgspec.structs.replace(params, **fields))
        due = {name for name, one in _steps.steps().items() if one.takes_part(apart)}
        taking = _until_greedy([name for name in names if name in due], params)
        usual = _until_greedy([name for name in _steps.steps() if name in due], params)
        if taking == usual and min_keep <= 1:
            return params
        fields["extra_args"][ORDERED] |= {"steps": taking, "min_keep": min_keep}
        return msgspec.structs.replace(params, **fields)

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row of each sampler that takes part. Raises: RequestError"""
        order = tokens.params.extra_args[ORDERED]
        own = dataclasses.replace(tokens, params=_as_sent(tokens.params))
        self._rows[tokens.row] = (order["steps"], order["min_keep"])
        for name in order["steps"]:
            self._steps[name].add_row(own)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        for name in self._rows.pop(row, ([], 0))[0]:
            self._steps[name].remove_row(row)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Do the steps: each round, the next one of every row, together for rows that share it.

        Shapes: logits [S, V]. Mutates: logits
        """
        for place in range(max(len(self._rows[row][0]) for _, row in rows)):
            due: dict[str, list[tuple[int, int]]] = {}
            for index, row in rows:
                steps = self._rows[row][0]
                if place < len(steps):
                    due.setdefault(steps[place], []).append((index, row))
            for name, pairs in due.items():
                keep = [max(self._rows[row][1], 1) for _, row in pairs]
                self._steps[name].apply_to(logits, pairs, keep)


def _until_greedy(names: list[str], params: SamplingParams) -> list[str]:
    """Return the steps of a request, without those after a temperature of 0, which leaves the best
    token alone."""
    is_greedy = params.temperature == 0.0 and "temperature" in names
    return names[: names.index("temperature")] if is_greedy else names


def _as_sent(params: SamplingParams) -> SamplingParams:
    """Return params that were taken apart with the steps' own values."""
    own: Mapping[str, Any] = params.extra_args[ORDERED]["own"]
    return msgspec.structs.replace(params, **own)
