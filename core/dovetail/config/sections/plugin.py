"""PluginConfig: options that are passed to plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """Plugin options."""

    plugin_options: Mapping[str, Any] = flag(
        {},
        help="options of the chosen plugins, by kind: --plugin-options.KIND.OPTION VALUE; "
        "`dovetail plugins show KIND:NAME` lists them",
    )
    no_plugin: tuple[str, ...] = flag(
        (),
        metavar="NAME",
        help="plugins to disable: NAME, KIND:NAME, NAME@PACKAGE, or a whole package",
    )

    def options_of(self, kind: str) -> dict[str, Any]:
        """Return the options given for one kind, whether spelled with underscores or dashes."""
        for name, options in self.plugin_options.items():
            if name.replace("-", "_") == kind:
                return dict(options) if isinstance(options, dict) else {}
        return {}
