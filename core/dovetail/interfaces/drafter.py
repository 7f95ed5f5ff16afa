"""Drafter: guesses the next tokens of a request, so that one forward pass can verify several.

There are two sorts: a `Drafter` knows token ids alone and is asked by the engine between two steps;
a `WorkerDrafter` runs on the worker beside the model, and its drafts come back with a step's
result. The model draws at every guessed position as it would have without, so guesses change speed
and never tokens. Source: Leviathan et al., "Fast inference from transformers via speculative
decoding", 2023.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import ModelSpec, RankSpec, Selection

if TYPE_CHECKING:
    import torch
    from torch import nn


class AnyDrafter(Plugin):
    """Base of both sorts. Core decides how often and for how many tokens a request is guessed, by
    how many of the guesses came true. The Options are the further keys of `--speculative-config`.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "on_worker": "runs on the worker beside the model: of every WorkerDrafter",
        "hidden_states": "continues the hidden states of the model beside it (worker drafters)",
        "by_depth": "computes something else for each place of a draft (worker drafters)",
        "whole_model": "runs a model plugin, of a checkpoint of its own (worker drafters)",
        "remembers": "learns from requests that ended, so that later ones may be drafted otherwise",
        "own_weights": "its weights are part of the model's own checkpoint (worker drafters)",
    }


class Drafter(AnyDrafter):
    """Guesses by token ids. One object per engine, called by one thread; a call should take
    microseconds.

    A drafter that raises, or names an id outside the vocabulary, is not asked again for that
    request; nothing else comes of it.
    """

    @abstractmethod
    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        """Prepare to guess at most `max_draft_tokens` tokens at a time for this model."""

    @abstractmethod
    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return up to `max_tokens` (at least 1) guesses of what follows `token_ids`, or none.

        `token_ids`, prompt and drawn tokens, begins with what it held in the request's previous
        call; it may have grown by any number of tokens. It is the engine's own: copy, never change.
        """

    @abstractmethod
    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request, but for what "remembers" learns of it; unknown ones are
        ignored."""


class TargetModel(Protocol):
    """The model beside a worker drafter. Shapes: T tokens, S selected ones, E hidden size, V
    vocabulary."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def rank(self) -> RankSpec: ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the tokens' vectors, as the first layer gets them. Shapes: [T] -> [T, E]"""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of final hidden states. Shapes: [S, E] -> [S, V]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftContext:
    """The arguments of a worker drafter's constructor. `build` is of the drafter's own checkpoint,
    and `model_plugin` the model plugin of the class that its settings name (None: there is none).
    """

    build: BuildContext
    target: TargetModel
    max_draft_tokens: int
    model_plugin: Selection | None = None


class WorkerDrafter(AnyDrafter):
    """Guesses beside the model, one token after the other. One object per rank, one thread.

    Core computes what the drafter's attention layers keep of every token, under the block ids of
    the model's own, so a prefix found in the cache is found by the drafter too. One that does not
    continue hidden states gets every token at its own position. One that does gets at position i
    the model's hidden state of i and the token i + 1, so that both tell it of token i + 2.
    Drafts go on from there: the token guessed last, and the state that `advance` made of it.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"on_worker"})
    example_settings: ClassVar[Mapping[str, Any]] = {}
    """What a tiny checkpoint has in config.json beside a Llama's settings, for the kit."""

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return a draft checkpoint's settings under the usual names of config.json, with the class
        in `architectures`. Raises: ConfigError. Imports no torch."""
        return dict(raw)

    def reads(self, name: str) -> bool:
        """Return whether a checkpoint's tensor of this name is of any use; others are not read."""
        return True

    @classmethod
    def num_cached_layers(cls, model: ModelSpec) -> int:
        """Return how many layers of the draft's checkpoint keep keys and values."""
        return model.num_layers

    @abstractmethod
    def __init__(self, options: Any, context: DraftContext) -> None:
        """Create all layers with empty parameters on `context.build.device`. Raises: ConfigError"""

    @abstractmethod
    def module(self) -> nn.Module:
        """Return the torch module that core fills: it has a `weight_map`, as a Model does. What
        the target owns is not part of it."""

    def inner_layers(self) -> tuple[int, ...]:
        """Return the numbers of the model's layers whose inputs are the states at depth 0, side by
        side; none: the final hidden states are."""
        return ()

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the checkpoint's tensors, names and shapes as the module's weight map wants them.
        Raises: ConfigError"""
        return found

    @abstractmethod
    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the states after these tokens. `depth` 0: tokens that are known, `states` of the
        model; d: the drafts of place d, `states` of the call before. None without "hidden_states".

        Shapes: token_ids, positions [T] int64, states [T, E] -> [T, E]
        """

    @abstractmethod
    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return logits over the model's vocabulary of what follows. Shapes: [S, E] -> [S, V]"""
