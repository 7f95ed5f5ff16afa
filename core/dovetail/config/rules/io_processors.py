"""The plugin that turns other data into prompts, if --io-processor-plugin names one."""

from __future__ import annotations

from dovetail.config.rules.selections import select
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.data.spec import PoolingSpec

FLAG, KIND = "--io-processor-plugin", "io_processor"


def select_io_processor(
    model_config: ModelConfig, plugins: PluginConfig, pooling: PoolingSpec | None
) -> Selection | None:
    """Return the plugin, None if none is named. Raises: ConfigError, PluginError"""
    name = model_config.io_processor_plugin
    if not name:
        return None
    if pooling is None:
        raise ConfigError(
            "it reads what a model pools, and this one generates.",
            where=FLAG,
            fix="leave it out, or serve the model with --runner pooling.",
        )
    return select(KIND, name, where=FLAG, options=plugins.options_of(KIND))
