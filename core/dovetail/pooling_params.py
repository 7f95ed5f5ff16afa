"""PoolingParams, under the path by which users of vLLM import it."""

from __future__ import annotations

from dovetail.interfaces.pooling_params import PoolingParams

__all__ = ["PoolingParams"]
