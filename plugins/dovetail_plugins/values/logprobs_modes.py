"""What is reported as logprobs: the choices of --logprobs-mode.

`value` is (stage, scale): "raw" logits are the model's own, "processed" ones have gone through
processors, penalties, temperature and filters; the scale is "logprobs" or "logits".
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

RAW_LOGPROBS = Value(summary="logprobs of the model's own logits", value=("raw", "logprobs"))
RAW_LOGITS = Value(summary="the model's own logits", value=("raw", "logits"))
PROCESSED_LOGPROBS = Value(
    summary="logprobs of the distribution that tokens are sampled from",
    value=("processed", "logprobs"),
)
PROCESSED_LOGITS = Value(
    summary="logits after processors, penalties, temperature and filters",
    value=("processed", "logits"),
)
