"""EncoderSplit: a step gives an encoder about the time that it takes without it."""

from __future__ import annotations

import pytest

from dovetail.engine.parts.encoder_split import FIRST_SHARE, LEAST_SHARE, EncoderSplit
from dovetail.interfaces.data.media import Encode
from dovetail.interfaces.data.step import RowStep, StepPlan

ROW = RowStep(row=0, start=9, num_tokens=1, samples=True, new_blocks=())
PROMPT = RowStep(row=0, start=0, num_tokens=900, samples=False, new_blocks=())


def step(*shares: float, row: RowStep = ROW) -> StepPlan:
    encode = tuple(Encode("key", "image", 100, (), share) for share in shares)
    return StepPlan(step_id=0, rows=(row,), encode=encode)


def test_a_piece_takes_as_long_as_the_rest_of_its_step() -> None:
    pace = EncoderSplit()
    assert pace.share("image", 100) == FIRST_SHARE, "nothing is known"
    for _ in range(5):
        pace.note(step(), 0.01)
    pace.note(step(row=PROMPT), 9.0)
    assert pace.share("image", 100) == FIRST_SHARE
    pace.note(step(0.05), 0.02)  # 0.01 s for a twentieth: a pass of 100 rows takes 0.2 s
    assert pace.share("image", 100) == pytest.approx(0.05)
    assert pace.share("image", 25) == pytest.approx(0.2)
    assert pace.share("image", 5) == 1.0
    assert pace.share("image", 100, weight=0.5) == pytest.approx(0.05)
    assert pace.share("image", 100, weight=6) == pytest.approx(0.3)
    assert pace.share("image", 100, weight=90) == 1.0
    assert pace.share("image", 10_000) == LEAST_SHARE
    assert pace.share("audio", 100) == FIRST_SHARE
    pace.note(step(0.25), 0.01)  # nothing was computed: as blocks are, a step may have none
    assert pace.share("image", 100) == pytest.approx(0.25)
    pace.note(step(1.0), 5.0)  # the last piece: the prompt is in it
    assert pace.share("image", 100) == pytest.approx(0.25)
