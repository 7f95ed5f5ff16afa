"""VITS: the sound of a text from one pass. MMS-TTS has the same layers.

An encoder reads characters or phonemes, a predictor draws how long each lasts, and a flow and a
HiFi-GAN make the samples. The layers are transformers' modules, without those for training. Each
prompt runs alone with the noise of its seed, so its samples are the same in any batch.
Sources: Kim, Kong and Son, VITS, 2021; Pratap et al., MMS, 2023.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations
from transformers.initialization import no_init_weights

from dovetail.errors import ConfigError, RequestFault
from dovetail.interfaces.data.pooling_params import SpeechParams
from dovetail.interfaces.data.spec import SOUND
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._hf_encoder import own_fields
from dovetail_plugins.models._hf_swap import store_buffers, swap_layers

MAX_SECONDS = 120
"""The longest sound of one prompt. The duration predictor sets no limit."""
TRAINING = ("post_flows", "post_conv_pre", "post_conv_proj", "post_conv_dds")
"""Parts of the duration predictor that are used in training alone."""
NORM_ENDS = {
    ".parametrizations.weight.original0": 0,
    ".parametrizations.weight.original1": 1,
    ".weight_g": 0,
    ".weight_v": 1,
}
"""Ends of the names of lengths (0) and of directions (1), in which some weights are stored."""


class VitsModel(nn.Module, Model):
    """Samples of texts."""

    capabilities = frozenset({"needs_host_rows"})
    whole_because = "transformers builds all layers"
    info = Info(summary="VITS and MMS-TTS: speech", source="https://arxiv.org/abs/2106.06103")

    def __init__(self, options: Any, context: BuildContext) -> None:
        """Create the layers. Raises: ConfigError for another purpose than speech, and for settings
        that transformers does not know"""
        super().__init__()
        spec = context.model
        where = f"{spec.path}: config.json"
        if spec.head != SOUND:
            raise ConfigError(
                "this model speaks; it makes neither vectors nor classes.",
                where="--convert",
                fix="leave the flag out.",
            )
        try:
            fields = own_fields(spec)
            config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
            with no_init_weights(), torch.device(context.device):
                whole: Any = transformers.VitsModel._from_config(config, dtype=torch.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"transformers cannot make this model: {error}.", where=where
            ) from error
        del whole.posterior_encoder
        for name in TRAINING:
            whole.duration_predictor._modules.pop(name, None)
        for module in [module for module in whole.modules() if is_parametrized(module)]:
            remove_parametrizations(module, "weight")
        swap_layers(context, whole, "")
        spread(whole.decoder)
        self._dtype = decoder_dtype(context)
        whole.decoder.to(self._dtype)
        store_buffers(whole)
        self.whole: Any = whole.eval().requires_grad_(False)
        self._scale = math.prod(config.upsample_rates)
        self._max_frames = MAX_SECONDS * config.sampling_rate // self._scale
        self._has_voices = config.num_speakers > 1

    def weight_map(self) -> WeightMap:
        """Return transformers' names; weights that are stored as lengths and directions are put
        together."""
        return WeightMap(
            prefixes=(("whole.", "whole."), ("", "whole.")),
            ignored=("posterior_encoder.", *(f"duration_predictor.{name}." for name in TRAINING)),
            conversion=stored_planes,
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the encoder's states, each prompt's alone. Shapes: token_ids, positions [T] ->
        [T, E]"""
        starts = (positions == 0).nonzero().flatten().tolist()
        counts = [end - start for start, end in pairwise([*starts, len(token_ids)])]
        return torch.cat([self._states(ids) for ids in token_ids.split(counts)])

    def _states(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the states of a prompt. Shapes: ids [n] -> [n, E]"""
        encoder = self.whole.text_encoder
        mask = torch.ones_like(ids, dtype=torch.float32)[None, :, None]
        found: torch.Tensor = encoder(input_ids=ids[None], padding_mask=mask).last_hidden_state[0]
        return found

    def speak(self, states: torch.Tensor, params: SpeechParams) -> torch.Tensor:
        """Return the samples of a prompt, with the noise that transformers draws after
        `manual_seed(seed)`. Shapes: states [n, E] -> [S]. Raises: RequestFault if it is too long"""
        whole, config = self.whole, self.whole.config
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(params.seed)
            voice = self._voice(params.voice, states.device)
            inner = states.T[None]
            counts = self._durations(inner, voice, config.speaking_rate * params.rate)
            numbers = whole.text_encoder.project(inner)[0].T
            means, logs = numbers.repeat_interleave(counts, 0)[None].split(config.flow_size, dim=2)
            means, logs = means.transpose(1, 2), logs.transpose(1, 2)
            noise = torch.randn_like(means.cpu()).to(means.device)
        latents = means + noise * torch.exp(logs) * config.noise_scale
        return self._samples(latents, voice)

    def _samples(self, latents: torch.Tensor, voice: torch.Tensor | None) -> torch.Tensor:
        """Return the samples of frames, whose number is rounded up: libraries prepare convolutions
        for each length anew, which may take longer than they do. Shapes: latents [1, F, L] -> [S]
        """
        count = latents.shape[2]
        room = rounded_up(count) - count
        mask = F.pad(latents.new_ones(1, 1, count), (0, room))
        frames = self.whole.flow(F.pad(latents, (0, room)), mask, voice, reverse=True)
        plane = frames[:, :, None].to(self._dtype, memory_format=torch.channels_last)
        if voice is not None:
            voice = voice[:, :, None].to(self._dtype)
        with ending_at(self.whole.decoder, count, count + room):
            samples: torch.Tensor = self.whole.decoder(plane, voice)[0, 0, 0]
        return samples[: count * self._scale].float()

    def _voice(self, voice: int, device: torch.device) -> torch.Tensor | None:
        """Return the vector of a voice, None if there is only one. Shapes: [1, V, 1]"""
        if not self._has_voices:
            return None
        found: torch.Tensor = self.whole.embed_speaker(torch.tensor([voice], device=device))
        return found[:, :, None]

    def _durations(
        self, inner: torch.Tensor, voice: torch.Tensor | None, rate: float
    ) -> torch.Tensor:
        """Return how many frames each token lasts. Shapes: inner [1, E, n] -> [n] int64. Raises:
        RequestFault for a sound without end"""
        config, predict = self.whole.config, self.whole.duration_predictor
        mask = inner.new_ones(1, 1, inner.shape[2])
        if config.use_stochastic_duration_prediction:
            logs = predict(
                inner, mask, voice, reverse=True, noise_scale=config.noise_scale_duration
            )
        else:
            logs = predict(inner, mask, voice)
        frames = torch.ceil(torch.exp(logs) * (1.0 / rate))[0, 0]
        total = float(frames.sum())
        if not total <= self._max_frames:
            raise RequestFault(f"the sound of this text would be longer than {MAX_SECONDS} s.")
        counts = frames.long()
        if total < 1:
            counts[0] = 1
        return counts


def rounded_up(count: int) -> int:
    """Return a number of frames, rounded up by less than a quarter, or to a multiple of 16. So few
    lengths are left that what is prepared for them fits oneDNN's cache (1024 convolutions)."""
    step = max(16, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step


@contextmanager
def ending_at(decoder: nn.Module, count: int, room: int) -> Iterator[None]:
    """Make the convolutions of a decoder see zeros after `count` of `room` frames, as they do after
    the end of a sound. Each has an input of its own, which is changed."""

    def end(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        plane = inputs[0]
        plane[..., count * plane.shape[-1] // room :] = 0

    convolutions = [
        module
        for path, module in decoder.named_modules()
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and path != "cond"
    ]
    hooks = [module.register_forward_pre_hook(end) for module in convolutions]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def decoder_dtype(context: BuildContext) -> torch.dtype:
    """Return the type in which samples are made: bfloat16 if that is asked for and the processor
    has instructions for it. All else is float32."""
    wants = "bfloat16" in (context.model.dtype, context.model.weight_dtype)
    is_able = context.device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if wants and is_able else torch.float32


def spread(decoder: nn.Module) -> None:
    """Replace convolutions over time with those of planes of height 1, which libraries compute
    faster: a point's channels are adjacent in memory. Mutates: decoder"""
    for path, module in list(decoder.named_modules()):
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            decoder.set_submodule(path, _plane(module))


def _plane(module: nn.Conv1d | nn.ConvTranspose1d) -> nn.Module:
    """Return a convolution of planes with empty weights."""
    kind: Any = nn.Conv2d if isinstance(module, nn.Conv1d) else nn.ConvTranspose2d
    plane: Any = kind(
        module.in_channels,
        module.out_channels,
        kernel_size=(1, module.kernel_size[0]),
        stride=(1, module.stride[0]),
        dilation=(1, module.dilation[0]),
        padding=(0, module.padding[0]),
        bias=module.bias is not None,
        device=module.weight.device,
        dtype=module.weight.dtype,
    )
    plane.weight.data = plane.weight.data.contiguous(memory_format=torch.channels_last)
    return plane  # type: ignore[no-any-return]


def stored_planes(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors, the decoder's convolutions over time as those of planes of height 1."""
    for name, tensor in joined_weights(tensors):
        is_conv = name.startswith("decoder.") and tensor.dim() == 3
        yield name, tensor[:, :, None] if is_conv else tensor


def joined_weights(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors, those stored as lengths and directions as one. Source: Salimans and Kingma,
    Weight Normalization, 2016. Raises: ConfigError if one of two is missing"""
    halves: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors:
        end = next((end for end in NORM_ENDS if name.endswith(end)), None)
        if end is None:
            yield name, tensor
            continue
        path = name.removesuffix(end)
        both = halves.setdefault(path, {})
        both[NORM_ENDS[end]] = tensor
        if len(both) == 2:
            del halves[path]
            yield f"{path}.weight", torch._weight_norm(both[1].float(), both[0].float(), 0)
    if halves:
        raise ConfigError(
            f"{next(iter(halves))} has only one half of its weight.",
            where="the checkpoint",
            fix="fetch the files again.",
        )
