"""Dual batch overlap: which steps are divided into two half batches, and whether that helps."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dovetail import registry
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.interfaces.communicator import OVERLAPS
from dovetail.interfaces.data.spec import HalvesSpec, RankSpec, Selection

log = logging.getLogger(__name__)

FLAG = "--enable-dbo"
DECODE, PREFILL = "dbo_decode_token_threshold", "dbo_prefill_token_threshold"


def halves_spec(
    parallel: ParallelConfig,
    origins: Mapping[str, str],
    rank: RankSpec,
    communicator: Selection | None,
) -> HalvesSpec | None:
    """Return which steps are divided into two half batches, or None. If the flag has no effect or
    costs time, the reason is logged."""
    if not parallel.enable_dbo:
        for name in (DECODE, PREFILL):
            if name in origins:
                log.warning("--%s has no effect: it needs %s", name.replace("_", "-"), FLAG)
        return None
    if communicator is None or rank.tensor_size * rank.data_size == 1:
        log.warning("%s has no effect: a rank's layers exchange nothing with other ranks", FLAG)
        return None
    if OVERLAPS not in registry.admin.load_selection(communicator).capabilities:
        log.warning(
            "%s: the communicator %s exchanges nothing while a rank computes, so large steps take "
            "longer in two half batches than whole, and answer the same; leave the flag out, or "
            "choose a --communicator that overlaps.",
            FLAG,
            communicator.name,
        )
    return HalvesSpec(
        decode_tokens=parallel.dbo_decode_token_threshold,
        prefill_tokens=parallel.dbo_prefill_token_threshold,
    )
