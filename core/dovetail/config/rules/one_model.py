"""One model: flags of a gateway are refused if a single model is served or used."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.config.sections.field import flags_of
from dovetail.config.sections.gateway import GatewayConfig
from dovetail.errors import ConfigError


def check_one_model(origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a flag that applies only to several models."""
    for flag in flags_of(GatewayConfig):
        if flag.name in origins:
            raise ConfigError(
                "there is one model, which is loaded as long as it is used.",
                where=flag.spelling,
                fix="leave it out, or write the model into a file for `dovetail serve --models`.",
            )
