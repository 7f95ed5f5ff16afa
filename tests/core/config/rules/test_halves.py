"""Half batches: their thresholds reach the runner, and what they cost or do not do is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.steps.halves import halves_spec
from dovetail.interfaces.communicator import OVERLAPS
from dovetail.interfaces.data.spec import HalvesSpec, RankSpec, Selection
from dovetail_testing.thread_ranks import ThreadCommunicator

TWO = RankSpec(world_size=2, tensor_size=2)
ENGINES = RankSpec(data_size=2)
DBO = {"enable_dbo": True}


class Overlapping(ThreadCommunicator):
    """Claims that its calls overlap."""

    capabilities = frozenset({OVERLAPS})


def by(name: str) -> Selection:
    module = __name__ if name == "Overlapping" else ThreadCommunicator.__module__
    return Selection(kind="communicator", name=name, target=f"{module}:{name}")


@pytest.mark.parametrize(
    ("rank", "fields", "communicator", "wanted", "told"),
    [
        (TWO, {}, "Overlapping", None, ""),
        (TWO, {"dbo_decode_token_threshold": 4}, "Overlapping", None, "it needs --enable-dbo"),
        (TWO, DBO, "Overlapping", (32, 512), ""),
        (ENGINES, DBO | {"dbo_decode_token_threshold": 4}, "Overlapping", (4, 512), ""),
        (TWO, DBO | {"dbo_prefill_token_threshold": 7}, "Overlapping", (32, 7), ""),
        (TWO, DBO, "ThreadCommunicator", (32, 512), "take longer in two half batches than whole"),
        (RankSpec(), DBO, None, None, "exchange nothing with other ranks"),
        (RankSpec(world_size=2, num_stages=2), DBO, "Overlapping", None, "exchange nothing"),
    ],
)
def test_which_steps_are_divided(
    rank: RankSpec,
    fields: dict[str, Any],
    communicator: str | None,
    wanted: tuple[int, int] | None,
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = None if communicator is None else by(communicator)
        config = Config.from_fields(fields)
        found = halves_spec(config.parallel, config.origins, rank, chosen)
    spec = None if wanted is None else HalvesSpec(decode_tokens=wanted[0], prefill_tokens=wanted[1])
    assert found == spec
    assert [told in record.message for record in caplog.records] == [True] * bool(told)
