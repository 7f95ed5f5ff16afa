"""DFlash and DSpark: a few layers fill all places of a draft in one pass.

The keys and values of known tokens are made of the model's inner states; then the last known token
and a mask token for each place attend to them and to each other. DSpark adds to a place's logits a
bias from the token drafted before it, and its known token's own state guesses the first place.
Formats: the checkpoints of z-lab (`dflash_config`), deepseek-ai (Qwen3DSparkModel) and
vllm-project/speculators.
Source: Chen et al., "DFlash: Block Diffusion for Flash Speculative Decoding", 2026; DeepSeek-AI,
"DSpark", 2026.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import DraftContext, MaskedBlock, WorkerDrafter
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters import _settings

if TYPE_CHECKING:
    import torch
    from torch import nn

NESTED = ("transformer_layer_config", "dflash_config", "dspark_config")
"""Keys of config.json with further settings."""
LAYER_IDS, SPECULATORS_IDS = "target_layer_ids", "aux_hidden_state_layer_ids"
"""The layers whose outputs are read, and in speculators' files those whose inputs are."""
SLIDING = "sliding_attention"


class DFlash(WorkerDrafter):
    """The embedding is the model's own, and so is the head, unless it has a smaller vocabulary."""

    info = Info(
        summary="fills all places of a draft in one pass, from the model's inner states (DFlash)",
        source="https://arxiv.org/abs/2602.06036",
    )
    capabilities = frozenset({"on_worker", "hidden_states", "by_depth"})
    example_settings = {"block_size": 8, "mask_token_id": 3, "target_layer_ids": [0]}

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the settings on one level, with Qwen 3's layers. Raises: ConfigError"""
        found = _settings.on_one_level(raw, NESTED)
        name = str((raw.get("architectures") or [""])[0])
        _check_kind(name, found)
        if found.get(LAYER_IDS) is None and found.get(SPECULATORS_IDS) is None:
            found[LAYER_IDS] = _usual_layers(found, target)
        is_spark = "dspark" in f"{name} {raw.get('speculators_model_type')}".lower()
        own_first = found.get("sample_from_anchor", found.get("shift_label"))
        found["sample_from_anchor"] = is_spark if own_first is None else bool(own_first)
        if SLIDING in (found.get("layer_types") or ()):
            found["use_sliding_window"] = True
        found["architectures"] = ["Qwen3ForCausalLM"]
        found.setdefault("vocab_size", target.vocab_size)
        return found

    def __init__(self, options: Any, context: DraftContext) -> None:
        from dovetail_plugins.drafters._dflash_module import DFlashModule

        config = context.build.model.hf_config
        _check_length(context.max_draft_tokens, config)
        self._target = context.target
        self._config = config
        self._module = DFlashModule(context, len(self.inner_layers()))

    def module(self) -> nn.Module:
        """Return fc, the layers and the heads."""
        return self._module

    def inner_layers(self) -> tuple[int, ...]:
        """Return the layers whose inputs are the outputs that the checkpoint names."""
        outputs = self._config.get(LAYER_IDS)
        if outputs is not None:
            return tuple(int(number) + 1 for number in outputs)
        return tuple(int(number) for number in self._config[SPECULATORS_IDS])

    def masked_block(self) -> MaskedBlock:
        """Return the block. Sliding layers see earlier places alone, unless config.json says
        otherwise."""
        config = self._config
        is_causal = config.get("is_causal")
        if is_causal is None:
            is_causal = not config.get("sliding_window_non_causal", False)
        kinds = config.get("layer_types") or ()
        sliding = (f"layers.{i}.self_attn" for i, kind in enumerate(kinds) if kind == SLIDING)
        return MaskedBlock(
            mask_token_id=int(config["mask_token_id"]),
            guess_shift=int(config["sample_from_anchor"]),
            causal_layers=frozenset(sliding if is_causal else ()),
        )

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the tensors without the map of the head's rows, which the module learns."""
        return self._module.vocabulary.read(found)

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Write known tokens from the model's states, or return the states of masked blocks.
        Shapes: [T], [T], [T, layers * E] or None -> [T, E]"""
        if states is not None:
            return self._module.write(states, positions)
        return self._module(self._target.embed(token_ids), positions)

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the logits without DSpark's bias. Shapes: [S, E] -> [S, V]"""
        head = self._module.lm_head or self._target.logits
        return self._module.vocabulary.of_all(head(states))

    def after_tokens(
        self, logits: torch.Tensor, states: torch.Tensor, token_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits with DSpark's bias. Shapes: [S, V], [S, E], [S] -> [S, V]"""
        markov = self._module.markov_head
        if markov is None:
            return logits
        return logits + self._module.vocabulary.of_all(markov(states, token_ids))


def _check_kind(name: str, found: Mapping[str, Any]) -> None:
    """Raise ConfigError for a checkpoint of a kind that is drafted otherwise, or lacks its mask."""
    what = None
    if "dflash2" in name.lower() or found.get("selector_rank"):
        what = "DFlash 2 picks among candidates with convolutions between the places"
    elif found.get("markov_rank") and found.get("markov_head_type") == "rnn":
        what = "its Markov head carries a state from place to place"
    elif found.get("mask_token_id") is None:
        what = "its config.json does not say mask_token_id"
    if what is not None:
        raise ConfigError(
            f"the drafter cannot be used: {what}.",
            where="--speculative-config.model: its config.json",
            fix="use a checkpoint of DFlash, or of DSpark with a vanilla or gated Markov head.",
        )


def _check_length(max_draft_tokens: int, config: Mapping[str, Any]) -> None:
    """Raise ConfigError for drafts longer than the blocks of the checkpoint."""
    size = int(config.get("block_size") or 0)
    limit = size if config["sample_from_anchor"] else size - 1
    if size and max_draft_tokens > limit:
        raise ConfigError(
            f"blocks of {size} tokens have room for {limit} drafts, not for {max_draft_tokens}.",
            where="--speculative-config.num_speculative_tokens",
            fix=f"use at most {limit}.",
        )


def _usual_layers(found: Mapping[str, Any], target: ModelSpec) -> list[int]:
    """Return the layers that DFlash reads where config.json names none: evenly spaced, from the
    second to the third last."""
    count = int(found.get("num_hidden_layers") or 1)
    last = int(found.get("num_target_layers") or target.num_layers) - 3
    if count == 1:
        return [(last + 3) // 2]
    return [round(1 + i * (last - 1) / (count - 1)) for i in range(count)]
