"""PoolingParams, under the import path of vLLM."""

from __future__ import annotations

from dovetail.interfaces.data.pooling_params import PoolingParams, SpeechParams

__all__ = ["PoolingParams", "SpeechParams"]
