"""Drafter: guesses the next tokens of a request, so that one forward pass can verify several.

There are two types. A `Drafter` sees only token ids and is called by the engine between steps. A
`WorkerDrafter` runs on the worker with the model, and its drafts are returned with a step's result.
The model draws at every drafted position as it would without drafts, so drafts change speed, never
tokens. Source: Leviathan et al., "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.interfaces.data.spec import ModelSpec, RankSpec, Selection
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch
    from torch import nn


class AnyDrafter(Plugin):
    """Base of both types. Core decides how often and how many tokens to draft for a request, from
    how many of its drafts were accepted. The Options are the other keys of
    `--speculative-config`."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "on_worker": "runs on the worker beside the model: of every WorkerDrafter",
        "hidden_states": "continues the hidden states of the model beside it (worker drafters)",
        "by_depth": "computes something else for each place of a draft (worker drafters)",
        "whole_model": "runs a model plugin, of a checkpoint of its own (worker drafters)",
        "remembers": "learns from requests that ended, so that later ones may be drafted otherwise",
        "predictions": "drafts the answer that a client predicts (not on the worker)",
        "model_cache": "caches nothing, but attends to the model's keys and values, all drafts of "
        "a row from the position of the first (worker drafters)",
        "own_weights": "its weights are part of the model's own checkpoint (worker drafters)",
    }


class Drafter(AnyDrafter):
    """Drafts from token ids. One object per engine, called by one thread; a call should take
    microseconds.

    A drafter that raises, or returns an id outside the vocabulary, is not called again for that
    request; there is no other effect.
    """

    @abstractmethod
    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        """Prepare to draft at most `max_draft_tokens` tokens at a time for this model."""

    @abstractmethod
    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return up to `max_tokens` (at least 1) guesses of what follows `token_ids`, or none.

        `token_ids` are prompt and drawn tokens. They extend those of the request's previous call by
        any number of tokens. The list belongs to the engine: copy it, never change it.
        """

    def expect(self, request_id: str, num_prompt_tokens: int, token_ids: Sequence[int]) -> None:
        """Note a client's guess of a request's answer, before the first `propose`; called with
        "predictions" alone. Mutates: self"""

    @abstractmethod
    def forget(self, request_id: str) -> None:
        """Drop the state of a request, except what a drafter with "remembers" learns from it;
        unknown ones are ignored."""


class TargetModel(Protocol):
    """The model that a worker drafter runs with. Shapes: T tokens, S selected ones, E hidden size,
    V vocabulary."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def rank(self) -> RankSpec: ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the tokens' vectors, as the first layer gets them. Shapes: [T] -> [T, E]"""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of final hidden states. Shapes: [S, E] -> [S, V]"""

    def attention(self, name: str) -> nn.Module:
        """Return the model's attention layer of this name (layers.attention.Attention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftContext:
    """The arguments of a worker drafter's constructor. `build` is for the drafter's own checkpoint;
    `model_plugin` is the plugin for the model class that its settings name (None: there is
    none)."""

    build: BuildContext
    target: TargetModel
    max_draft_tokens: int
    model_plugin: Selection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBlock:
    """What a drafter that guesses all places in one pass gets: a row's last known token, then the
    mask token at the positions that follow, which all see each other.

    The state at index i of a block guesses the token `guess_shift` positions after index i: 1 if
    the known token's own state guesses the first place, 0 if only masks guess. The attention layers
    named in `causal_layers` see earlier positions alone.
    """

    mask_token_id: int
    guess_shift: int = 0
    causal_layers: frozenset[str] = frozenset()


class WorkerDrafter(AnyDrafter):
    """Drafts on the worker. One object per rank, one thread.

    Core caches the keys and values of the drafter's attention layers under the model's own block
    ids, so a prefix hit of the model is also one of the drafter. A drafter that does not continue
    hidden states gets every token at its own position. One that does gets at position i the model's
    hidden state of i and token i + 1, to predict token i + 2. Further drafts continue from the
    token drafted last and the state that `advance` returned for it. One with a `masked_block` gets
    states of known tokens at depth 0 (its attention layers then only write keys and values), and
    the block itself at depth 1, without states; `after_tokens` is called place by place.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"on_worker"})
    example_settings: ClassVar[Mapping[str, Any]] = {}
    """What a tiny checkpoint's config.json has in addition to a Llama's settings, for the kit."""

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return a draft checkpoint's settings under the usual names of config.json, with the class
        in `architectures`. Raises: ConfigError. Imports no torch."""
        return dict(raw)

    def reads(self, name: str) -> bool:
        """Return whether a checkpoint tensor of this name is needed; others are not read."""
        return True

    @classmethod
    def own_names(cls, name: str, target: ModelSpec) -> tuple[str, ...]:
        """Return the names here of a tensor of the checkpoint, none if it is not needed: a
        quantization method learns by them how each layer is stored."""
        return (name,)

    @classmethod
    def num_cached_layers(cls, model: ModelSpec) -> int:
        """Return how many layers of the draft's checkpoint cache keys and values."""
        return model.num_layers

    @abstractmethod
    def __init__(self, options: Any, context: DraftContext) -> None:
        """Create all layers with empty parameters on `context.build.device`. Raises: ConfigError"""

    @abstractmethod
    def module(self) -> nn.Module:
        """Return the torch module that core fills; like a Model, it has a `weight_map`. It does not
        include what the target owns."""

    def inner_layers(self) -> tuple[int, ...]:
        """Return the numbers of the model's layers whose inputs, concatenated, are the states at
        depth 0; empty: the final hidden states are."""
        return ()

    def masked_block(self) -> MaskedBlock | None:
        """Return how it guesses all places in one pass; None: it goes from token to token."""
        return None

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the checkpoint's tensors, with names and shapes as the module's weight map
        expects. Raises: ConfigError"""
        return found

    @abstractmethod
    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the states after these tokens. `depth` 0: known tokens, `states` are the model's;
        d: the drafts at place d, `states` are from the previous call. None without "hidden_states".

        Shapes: token_ids, positions [T] int64, states [T, E] -> [T, E]
        """

    @abstractmethod
    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return logits over the model's vocabulary for the next token. Shapes: [S, E] -> [S, V]"""

    def after_tokens(
        self, logits: torch.Tensor, states: torch.Tensor, token_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return logits of one place of masked blocks, corrected by the tokens before it.

        Shapes: logits [S, V], states [S, E], token_ids [S] -> [S, V]
        """
        return logits
