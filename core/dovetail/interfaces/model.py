"""Model: one model family as a module that computes hidden states, and logits or classes.

A model plugin is a torch.nn.Module built from `dovetail.layers` that also derives from Model; this
file itself imports torch for type checking only. Shape letters: T tokens of the step, S selected
tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.interfaces.data.media import PartPlace
from dovetail.interfaces.data.pooling_params import SpeechParams
from dovetail.interfaces.data.spec import ExpertBalanceSpec, ModelSpec, RankSpec
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.quantization import QuantMethod

if TYPE_CHECKING:
    import torch
    from torch import nn


class RowView(Protocol):
    """One row of the running step, for models that need more than tensors (test models do)."""

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def start(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The arguments of a model's constructor. `quant` gives every linear layer its weights.
    `max_tokens` is the longest row to be served (None: all the checkpoint allows). Without
    `uses_fused_ops` layers use the framework's own operators if they have a choice.
    `expert_placement` is the "module:function" of an `interfaces.expert_placement.ExpertPlacement`
    that assigns experts to ranks ("": each rank holds a part of every expert), and `expert_balance`
    how they move between steps (None: never). `rope_factors` are the linear rope scalings that
    adapters may use. With `divides_encoders` each rank has a part of a media encoder, otherwise all
    of it."""

    model: ModelSpec
    quant: QuantMethod
    device: str
    rank: RankSpec = field(default_factory=RankSpec)
    max_tokens: int | None = None
    uses_fused_ops: bool = True
    expert_placement: str = ""
    expert_balance: ExpertBalanceSpec | None = None
    divides_encoders: bool = False
    rope_factors: tuple[float, ...] = ()


class Conversion(Protocol):
    """Converts a checkpoint's tensors one by one."""

    def __call__(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMap:
    """How checkpoint names are mapped to parameter names. Applied in this order.

    `conversion`: from the tensors that a checkpoint stores to those that the other fields refer to,
    if some are stored joined, cut or permuted; None: they are the same. `prefixes`: (old, new)
    replacements at the start of a name, first match wins. `renames`: (old, new) replacements of a
    substring anywhere, all applied. `fused`: checkpoint leaf -> (parameter leaf, part), e.g.
    "q_proj" -> ("qkv_proj", "q"). `transposed`: suffixes of checkpoint names stored as [in, out]
    (GPT-2's Conv1D), or as [experts, in, out]. `ignored`: substrings of names that hold no weight
    (rotary tables, masks). `tied`: parameter -> the parameter it shares memory with; the checkpoint
    may lack it. `parts`: a submodule's path with a trailing dot -> the WeightMap for the rest of
    the name.
    """

    prefixes: tuple[tuple[str, str], ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    fused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, WeightMap] = field(default_factory=dict)
    conversion: Conversion | None = None


class Model(Plugin):
    """Also a torch.nn.Module. The entry point's name is the checkpoint's architecture.

    Attention layers (`dovetail.layers.attention.Attention`) are found by walking the module; they
    read the step's layout from the forward context, so `forward` takes plain tensors.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "tensor_parallel": "layers may be divided over ranks",
        "pipeline_parallel": "ranks may hold some of the layers each (see layers.stages)",
        "leaves_out_tokens": "computes only the tokens that are drawn after in layers that read "
        "what others wrote (see layers.context.DrawnTokens)",
        "needs_host_rows": "reads the step's rows on the host, so steps are neither captured "
        "nor started ahead (test models)",
        "media": "encodes media that stand in prompts (`encode`)",
        "vectors": "its first layer reads vectors in place of tokens (layers.media.with_media)",
        "encoder": "an encoder reads what is sent (`encode`), and the decoder attends to that",
        "no_weights": "needs no checkpoint tensors (test models)",
    }
    whole_because: ClassVar[str] = "its plugin builds all layers at once"
    """Why a model without "pipeline_parallel" cannot be divided into stages: a clause."""
    no_graphs_because: str = ""
    """Why steps of this model cannot be captured by a device: a clause ("": they can)."""
    takes_media: bool = True
    """Whether this rank's layers take the vectors of media; only those ranks encode."""
    published_names: WeightMap = WeightMap()
    """From the names in the checkpoint to those that `weight_map` refers to; set by the loader."""

    @abstractmethod
    def __init__(self, options: Any, context: BuildContext) -> None:
        """Create all layers with empty parameters on context.device.

        Raises: ConfigError when the checkpoint's config requires something unsupported.
        """

    @abstractmethod
    def weight_map(self) -> WeightMap:
        """Return how checkpoint names map to this module's parameters."""

    @abstractmethod
    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] int64 -> [T, E]"""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens; called on models that generate (ModelSpec.head is
        "logits").
        Shapes: hidden [S, E] -> [S, V]"""
        raise NotImplementedError(f"{type(self).__name__} does not generate")

    def encode(
        self, kind: str, features: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Return the vectors of several contents of a kind, one tensor per content; called on
        models with the capability "media". Shapes: each [rows of the content, E]"""
        raise NotImplementedError(f"{type(self).__name__} takes no media")

    def encoder_blocks(self) -> Sequence[nn.Module]:
        """Return the encoder's modules in call order. A pass may pause before each of them for a
        step of the text model; empty: a pass is not interrupted."""
        return ()

    def prompt_positions(
        self, num_tokens: int, parts: Sequence[PartPlace]
    ) -> tuple[torch.Tensor, int] | None:
        """Return a prompt's positions in three dimensions, and the offset to add to the index of a
        later token to get its position in all of them. None: positions are the token indices.

        Shapes: [3, num_tokens] int64
        """
        return None

    def task_states(
        self, task: str, states: torch.Tensor, token_ids: Sequence[int]
    ) -> torch.Tensor:
        """Return what the pooler of a task gets of a prompt: its hidden states, or what a head
        makes of them. Shapes: states [n, E] -> [m, O]"""
        return states

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the class scores, before any activation; called on models built with the head
        "classes" or "token_classes". Shapes: pooled [S, E] -> [S, C]"""
        raise NotImplementedError(f"{type(self).__name__} has no classes")

    def speak(self, states: torch.Tensor, params: SpeechParams) -> torch.Tensor:
        """Return the samples of a prompt's sound; called on models built with the head "sound". The
        same states and params give the same samples. Shapes: states [n, E] -> [S]"""
        raise NotImplementedError(f"{type(self).__name__} does not speak")
