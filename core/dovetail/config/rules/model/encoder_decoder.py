"""Features that cannot be combined with an encoder-decoder model."""

from __future__ import annotations

from dovetail.config.sections.lora import LoRAConfig
from dovetail.config.sections.speculative import SpeculativeConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec, RankSpec


def check_encoder(
    speculative: SpeculativeConfig, lora: LoRAConfig, model: ModelSpec, rank: RankSpec
) -> None:
    """Raise ConfigError for flags that do not support an encoder, if the model has one."""
    if model.encoder is None:
        return
    refused = {
        "--decode-context-parallel-size": rank.context_size > 1,
        "--speculative-config": bool(speculative.speculative_config),
        "--enable-lora": bool(lora.enable_lora),
    }
    for flag, is_given in refused.items():
        if is_given:
            raise ConfigError(
                f"{model.architecture} has an encoder beside its decoder, and this is supported "
                "for decoders alone.",
                where=flag,
                fix="leave it out.",
            )
