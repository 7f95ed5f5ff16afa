"""Facts of MiMo: config.json defaults as in Qwen2."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types import qwen2

MIMO = Value(summary="MiMo", value=qwen2.FACTS)
