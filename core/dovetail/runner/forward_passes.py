"""ForwardPasses: the ways in which a ModelRunner runs the model on a step's tokens.

Small steps are recorded calls or a captured graph, large ones may be divided in halves, and all
others run eagerly. ModelRunner handles plans and sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from dovetail.interfaces.all2all import All2All
from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.model import Model, RowView
from dovetail.layers.context import (
    ForwardContext,
    LayerCache,
    step_adapters,
    step_media,
    use_adapters,
    use_context,
)
from dovetail.runner.drafts import verify
from dovetail.runner.drafts.states import DraftStates
from dovetail.runner.media.runner_media import RunnerMedia
from dovetail.runner.pooling import PromptPooling
from dovetail.runner.prompt_logprobs import PromptLogprobs
from dovetail.runner.replay.compiled import CompiledForward, ModelForward
from dovetail.runner.replay.graphs import GraphManager
from dovetail.runner.replay.halves import HalfStep, StepHalves, divided_step
from dovetail.runner.replay.recorded import RecordedForward
from dovetail.runner.rows.batch import Batch, StepInputs
from dovetail.runner.rows.layer_groups import LayerGroups
from dovetail.runner.rows.skipped_tokens import NO_TOKENS, drawn_alone
from dovetail.runner.rows.tensors import DeviceTensors, HostTensors
from dovetail.runner.step_reader import Computed


class ForwardPasses:
    """The state that a pass needs; ModelRunner sets it when it loads and allocates."""

    _backend: AttentionBackend
    _batch: Batch
    _caches: dict[str, LayerCache]
    _compiled: CompiledForward | None
    _draft_states: DraftStates
    _draws: bool
    _exchange: All2All | None
    _graphs: GraphManager | None
    _groups: LayerGroups
    _halves: StepHalves | None
    _inner: dict[int, torch.Tensor | None]
    _leaves_out: bool
    _media: RunnerMedia
    _model: Model
    _pooling: PromptPooling | None
    _prompt_logprobs: PromptLogprobs
    _recorded: RecordedForward | None
    _tensors: HostTensors | DeviceTensors

    def _forward(self, inputs: StepInputs, sampling: np.ndarray) -> Computed:
        """Run the model on the step's tokens. Shapes: sampling [S] indices of rows"""
        adapters, is_plain = step_adapters(), step_media() is None
        after = verify.drawn_after(inputs, sampling)
        cut = None if self._halves is None else self._halves.first_of_second(inputs)
        if cut is not None:
            return self._forward_halves(inputs, sampling, after, cut)
        is_plain &= adapters is None or adapters.is_low_rank
        if is_plain and self._recorded is not None:
            second_text = None if self._pooling is None else self._pooling.second_text
            hidden = self._recorded.run(inputs, second_text)
            if hidden is not None:
                told = torch.from_numpy(after) if self._draws and after is not None else None
                return Computed(hidden=hidden, drawn_after=told)
        if is_plain and self._graphs is not None and len(sampling) == len(inputs.steps):
            outputs = self._graphs.run(inputs, uses_adapters=adapters is not None)
            if outputs is not None:
                return Computed(hidden=outputs[0], drawn_rows=outputs[1])
        placed = self._tensors.place(inputs, after)
        read = self._read(inputs, sampling, after)
        layouts, views = self._draft_states.laid(inputs, placed.layouts), self._batch.views(inputs)
        step = (placed.token_ids, placed.positions, layouts, views)
        hidden = self._forward_eagerly(*step, read=read)
        return Computed(hidden=hidden, drawn_after=placed.drawn_after, drawn_rows=placed.drawn_rows)

    def _read(
        self, inputs: StepInputs, sampling: np.ndarray, after: np.ndarray | None
    ) -> np.ndarray | None:
        """Return the tokens whose hidden states are needed, None: all. Shapes: [S], [S] -> [S]"""
        is_plain = step_media() is None and step_adapters() is None
        if not (is_plain and self._leaves_out) or self._prompt_logprobs.asks(inputs):
            return None
        return after if sampling.size else NO_TOKENS

    def _forward_halves(
        self, inputs: StepInputs, sampling: np.ndarray, after: np.ndarray | None, cut: int
    ) -> Computed:
        """Run the model on both halves of the step's tokens. Shapes: as `_forward`"""
        placed = self._tensors.place(inputs, after)
        has_media, media = step_media() is not None, self._media.of_step
        halves = divided_step(
            inputs,
            cut,
            placed,
            layouts=self._draft_states.laid(inputs, placed.layouts),
            second_text=None if self._pooling is None else self._pooling.second_text,
            read=self._read(inputs, sampling, after),
            media_of=media if has_media else None,
        )
        assert self._halves is not None
        hidden = self._halves.run(self._forward_half, halves)
        for number in self._inner:
            self._inner[number] = torch.cat([half.inner[number] for half in halves])
        return Computed(
            hidden=hidden,
            drawn_after=placed.drawn_after,
            drawn_rows=placed.drawn_rows,
            is_divided=True,
        )

    def _forward_half(self, half: HalfStep) -> torch.Tensor:
        """Run the model on a half. Shapes: -> [T of the half, E]"""
        return self._run_model(
            self._model.forward,
            half.token_ids,
            half.positions,
            half.layouts,
            self._batch.views(half.inputs),
            second_text=half.second_text,
            read=half.read,
            half=half,
        )

    def _forward_eagerly(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        rows: Sequence[RowView] = (),
        read: np.ndarray | None = None,
    ) -> torch.Tensor:
        """Run the model, compiled if that is faster. Shapes: as the model's, read [S]"""
        is_plain = step_adapters() is None and step_media() is None and read is None
        forward = (self._compiled if is_plain else None) or self._model.forward
        second_text = None if self._pooling is None else self._pooling.second_text
        return self._run_model(
            forward, token_ids, positions, layouts, rows, second_text=second_text, read=read
        )

    def _run_model(
        self,
        forward: ModelForward,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        rows: Sequence[RowView] = (),
        *,
        second_text: torch.Tensor | None = None,
        read: np.ndarray | None = None,
        half: HalfStep | None = None,
    ) -> torch.Tensor:
        """Run a forward pass on a step. `read`: only these tokens' hidden states are needed.
        Shapes: token_ids, positions, second_text [T], read [S] -> [T, E]"""
        if self._exchange is not None:
            self._exchange.begin_step(len(token_ids))
        prepare = partial(self._groups.prepared, self._backend)
        context = ForwardContext(
            backend=self._backend,
            prepared=prepare(layouts),
            caches=self._caches,
            rows=rows,
            second_text=second_text,
            drawn=None if read is None else drawn_alone(layouts, read, prepare),
            first_token=0 if half is None else half.first_token,
            inner=None if half is None else half.inner,
        )
        with use_context(context):
            return forward(token_ids, positions)

    def _forward_own(self, *step: Any) -> torch.Tensor:
        """Run the currently loaded model on a step that may be recorded."""
        *rest, second_text, adapters = step
        with use_adapters(adapters):
            return self._run_model(self._model.forward, *rest, second_text=second_text)
