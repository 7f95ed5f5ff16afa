"""SameOperations: a trainer's model of transformers, computed by an engine's operations.

Kernels that add in another order give other last bits, so a trainer's log probabilities of drawn
tokens differ from those that the engine had when it drew them. Here embedding, decoder layers, the
last norm and the head compute with the engine's own layers and kernels, whose results do not depend
on the rows next to them; gradients are those of transformers' own operations at the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from msgspec import structs
from torch import nn

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.layers.attention.other_dtype import in_dtype
from dovetail.layers.context import ForwardContext, use_context
from dovetail.layers.decoder import DecoderForCausalLM, DecoderLayer, DecoderModel
from dovetail.layers.kept import kept_layers
from dovetail.runner.kv.allocation import allocate_tensors, layer_caches, small_layout
from dovetail.runner.load.loader import load_model
from dovetail.sampling.logprobs import token_logprobs
from dovetail_plugins.attention.native_cpu import NativeCpu
from dovetail_plugins.device_workers.in_place import InPlace

Compute = Callable[[torch.Tensor], torch.Tensor]
NOT_SUPPORTED = ("inputs_embeds", "position_ids", "past_key_values")
"""Arguments of forward passes that go on from earlier ones, or have no tokens."""


class SameOperations:
    """Makes `model`, of transformers, compute as an engine with this `run` (`llm.spec.run`) does,
    while `is_on`.

    For plain decoders such as Llama's and Qwen3's whose weights are float32 here, and an engine on
    a CPU with one rank, native attention and no quantization. What it has in bfloat16 is rounded
    for the forward pass. Prompts begin at position 0 and are padded on the right, if at all. Each
    forward pass takes the model's weights as they are then.
    Mutates: model. Raises: ConfigError for another model.
    """

    def __init__(self, model: nn.Module, run: RunSpec) -> None:
        self.is_on = True
        options = {**run.load_options, "weight_cache_bytes": 0}  # which holds what never changes
        run = structs.replace(run, load_options=options, shows_progress=False)
        self._trained, self._run = cast(Any, model), run
        self._device = torch.device("cpu")
        backend: AttentionBackend = registry.make(run.attention)
        self._backend = in_dtype(backend, run.attention_dtype, run.model.dtype)
        own = load_model(run, self._device).module
        self._verify(own)
        self._own = cast(DecoderForCausalLM, own)
        decoder = self._own.model
        in_place = InPlace(own)
        tensors = ((name, tensor.data) for name, tensor in model.named_parameters())
        in_place.read(run, self._device, tensors)
        self._writings = in_place.writings
        if not in_place.is_complete:
            raise _unlike("some of its weights are stored in another form than the trainer's")
        self._context: ForwardContext | None = None
        self._ropes: dict[str, Any] = {}
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        self._replace_embedding(self._trained.model.embed_tokens, decoder)
        for layer, trained in zip(decoder.layers, self._trained.model.layers, strict=True):
            self._replace(trained, self._layer(cast(DecoderLayer, layer)))
        self._replace(self._trained.model.norm, decoder.norm)
        self._replace(self._trained.lm_head, self._own.logits)

    def _verify(self, own: nn.Module) -> None:
        """Raise ConfigError unless both models are of the kind that this is for."""
        run, trained = self._run, self._trained
        if not isinstance(own, DecoderForCausalLM) or not is_plain(own):
            raise _unlike("it is not a plain decoder")
        if run.device != "cpu" or run.rank.world_size > 1 or run.model.dtype != "float32":
            raise _unlike("the engine does not compute in float32 on one CPU")
        if not isinstance(self._backend, NativeCpu):
            raise _unlike(f"attention is that of {run.attention.name}, not of native_cpu")
        if any(one.dtype != torch.float32 for one in trained.parameters()):
            raise _unlike("its weights are not float32")
        layers = getattr(getattr(trained, "model", None), "layers", ())
        if len(layers) != len(own.model.layers) or getattr(trained, "lm_head", None) is None:
            raise _unlike("it has other layers")

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the model's weights, and the places of the tokens. Raises: ConfigError.
        Mutates: self"""
        if not self.is_on:
            return
        ids = args[0] if args else kwargs.get("input_ids")
        mask = kwargs.get("attention_mask")
        if ids is None or any(kwargs.get(name) is not None for name in NOT_SUPPORTED):
            raise _unlike(f"it was called with {' or '.join(NOT_SUPPORTED)}")
        if mask is not None and (mask.dim() != 2 or (mask.diff() > 0).any()):
            raise _unlike("its rows are not padded on the right")
        with torch.inference_mode():
            for writing in self._writings:
                writing.write()
            num_rows, length = ids.shape
            layout = rows_of(num_rows, length, self._run.block_tokens)
            layers = kept_layers(self._own, self._run)
            memory = small_layout(
                layers,
                self._backend,
                block_tokens=self._run.block_tokens,
                num_blocks=1 + layout.block_table.numel(),
            )
            prepared = self._backend.prepare(layout)
            self._context = ForwardContext(
                backend=self._backend,
                prepared={layer.name: prepared for layer in layers},
                caches=layer_caches(
                    memory, layers, self._backend, allocate_tensors(memory, self._device)
                ),
            )
            positions = torch.arange(length).repeat(num_rows)
            rotaries = self._own.model.rotaries
            self._ropes = {name: rotary(positions) for name, rotary in rotaries.items()}

    def _layer(self, layer: DecoderLayer) -> Compute:
        def compute(x: torch.Tensor) -> torch.Tensor:
            assert self._context is not None, "the model itself is called, not its parts"
            with use_context(self._context):
                return layer(x, self._ropes)

        return compute

    def _replace_embedding(self, module: nn.Module, decoder: DecoderModel) -> None:
        """Let the trained model look tokens up as the engine does. Mutates: module"""
        own = module.forward

        def forward(ids: torch.Tensor) -> torch.Tensor:
            if not self.is_on:
                return cast(torch.Tensor, own(ids))
            return _Replaced.apply(
                lambda x: decoder.embed_tokens(x[:, 0]),
                lambda x: own(x[..., 0]),
                ids.unsqueeze(-1),
                *module.parameters(),
            )

        module.forward = forward  # type: ignore[method-assign]

    def _replace(self, module: nn.Module, compute: Compute) -> None:
        """Let a module of the trained model compute by the engine's. Mutates: module"""
        own = module.forward

        def forward(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            def with_torch(x: torch.Tensor) -> torch.Tensor:
                found = own(x, *args, **kwargs)
                return cast(torch.Tensor, found[0] if isinstance(found, tuple) else found)

            if not self.is_on:
                return with_torch(hidden)
            return _Replaced.apply(compute, with_torch, hidden, *module.parameters())

        module.forward = forward  # type: ignore[method-assign]


def is_plain(own: DecoderForCausalLM) -> bool:
    """Return whether a model is made of the layers that all plain decoders have, unscaled."""
    decoder = own.model
    if type(decoder) is not DecoderModel or any(
        type(x) is not DecoderLayer for x in decoder.layers
    ):
        return False
    config = decoder.config
    scales = config.embedding_scale, config.branch_scale, config.logit_scale
    return scales == (1.0, 1.0, 1.0) and config.final_logit_softcap is None


def drawn_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log probabilities of tokens as the engine computes them; gradients are those of
    log_softmax. Shapes: logits [S, V] float32, tokens [S] int64 -> [S]"""

    def compute(x: torch.Tensor) -> torch.Tensor:
        found = token_logprobs(x.contiguous(), tokens.tolist(), [0] * len(tokens))
        return torch.tensor([one.logprob for one in found])

    def with_torch(x: torch.Tensor) -> torch.Tensor:
        return x.log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    return _Replaced.apply(compute, with_torch, logits)


class _Replaced(torch.autograd.Function):
    """What `compute` makes of rows, with the gradients of what torch makes of them."""

    @staticmethod
    def forward(
        ctx: Any, compute: Compute, with_torch: Compute, x: torch.Tensor, *parameters: nn.Parameter
    ) -> torch.Tensor:
        """Shapes: x [..., E] -> [..., O], or [...] if `compute` returns a number a row"""
        ctx.with_torch = with_torch
        ctx.save_for_backward(x, *parameters)
        with torch.inference_mode():
            found = compute(x.detach().reshape(-1, x.shape[-1]).clone())
        return found.clone().view(*x.shape[:-1], *found.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of x and of the parameters, None for those that have none."""
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(x.is_floating_point())
            found = ctx.with_torch(x)
        inputs = [one for one in (x, *parameters) if one.requires_grad]
        gradients = iter(torch.autograd.grad(found, inputs, gradient, allow_unused=True))
        return (
            None,
            None,
            *(next(gradients) if one.requires_grad else None for one in (x, *parameters)),
        )


def rows_of(num_rows: int, length: int, block_tokens: int) -> BatchLayout:
    """Return the layout of rows of one length, each in its own blocks from 1 on."""
    blocks = -(-length // block_tokens)
    table = 1 + torch.arange(num_rows * blocks, dtype=torch.int32).view(num_rows, blocks)
    first = table.long()[:, :, None] * block_tokens + torch.arange(block_tokens)
    starts, lengths = [row * length for row in range(num_rows + 1)], [length] * num_rows
    return BatchLayout(
        query_start=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        slots=first.view(num_rows, -1)[:, :length].reshape(-1),
        query_start_host=starts,
        seq_lens_host=lengths,
        block_tokens=block_tokens,
        max_query_tokens=length,
        max_seq_tokens=length,
    )


def _unlike(reason: str) -> ConfigError:
    return ConfigError(
        f"this model cannot compute as the engine does: {reason}.",
        where="model",
        fix="train a Llama or Qwen3 model in float32 on whole prompts, with an engine on a CPU.",
    )
