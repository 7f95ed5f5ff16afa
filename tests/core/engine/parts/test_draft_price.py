"""Whether drafts pay, learned from the times of steps."""

from __future__ import annotations

import random

import pytest

from dovetail.engine.parts.draft_price import FEW_STEPS, LEAST_WORTH, PROBE_STEPS, DraftPrice


def run(
    price: DraftPrice,
    *,
    rows: int,
    plain_s: float,
    per_draft_s: float,
    share: float,
    steps: int = 1000,
    most: int = 4,
) -> tuple[float, float, int]:
    """Decode as a model of time says; return the seconds, the tokens and the steps with drafts."""
    rng = random.Random(1)
    seconds, tokens, num_drafted = 0.0, 0, 0
    for _ in range(steps):
        drafts = rows * most if price.pays(rows) else 0
        accepted = sum(rng.random() < share for _ in range(drafts))
        step_s = (plain_s + per_draft_s * drafts) * rng.uniform(0.95, 1.05)
        price.note(rows, drafts, accepted, step_s)
        seconds += step_s
        tokens += rows + accepted
        num_drafted += drafts > 0
    return seconds, tokens, num_drafted


@pytest.mark.parametrize("rows", [4, 8, 32])
def test_drafts_that_pay_are_kept(rows: int) -> None:
    seconds, tokens, drafted = run(
        DraftPrice(), rows=rows, plain_s=0.01, per_draft_s=0.0005 / rows, share=0.6
    )
    assert drafted > 950
    always = (0.01 + 0.0005 * 4) / (rows * (1 + 4 * 0.6))
    assert seconds / tokens < always * 1.05


@pytest.mark.parametrize("rows", [4, 8, 32])
def test_drafts_that_cost_more_are_dropped(rows: int) -> None:
    seconds, tokens, _ = run(
        DraftPrice(), rows=rows, plain_s=0.001, per_draft_s=0.0005 / rows, share=0.2, steps=4000
    )
    assert seconds / tokens < 0.001 / rows / 0.96


def test_they_are_tried_again_when_they_have_become_worth_it() -> None:
    price = DraftPrice()
    run(price, rows=8, plain_s=0.001, per_draft_s=0.001, share=0.1)
    _, _, drafted = run(price, rows=8, plain_s=0.001, per_draft_s=0.00001, share=0.8, steps=4000)
    assert drafted > 2000


def test_a_hasty_verdict_does_not_last() -> None:
    """A few slow steps, as while sizes are recorded, are looked at again soon, and less often the
    longer drafts do not pay."""
    price = DraftPrice()
    run(price, rows=8, plain_s=0.001, per_draft_s=0.001, share=0.6, steps=64)
    assert not price.pays(8)
    _, _, drafted = run(price, rows=8, plain_s=0.001, per_draft_s=0.00001, share=0.6, steps=400)
    assert drafted > 300
    price = DraftPrice()
    run(price, rows=8, plain_s=0.001, per_draft_s=0.001, share=0.1, steps=1000)
    _, _, drafted = run(price, rows=8, plain_s=0.001, per_draft_s=0.001, share=0.1, steps=4000)
    assert drafted <= 4 * PROBE_STEPS


def test_a_step_that_takes_long_once_decides_nothing() -> None:
    price = DraftPrice()
    for turn in range(80):
        drafts = 32 if price.pays(8) else 0
        step_s = 0.5 if turn in (1, 2, 3) else 0.001 + 0.00001 * drafts
        price.note(8, drafts, 24 if drafts else 0, step_s)
    assert price.pays(8)


def test_a_few_steps_decide_nothing_and_other_numbers_of_rows_are_apart() -> None:
    price = DraftPrice()
    for _ in range(FEW_STEPS - 1):
        assert price.pays(1)
        price.note(1, 4, 0, 1.0)
    run(price, rows=8, plain_s=0.001, per_draft_s=0.01, share=0.0)
    assert price.pays(64)


def test_what_a_draft_must_bring_is_what_its_step_costs() -> None:
    price = DraftPrice()
    assert price.least_worth(1) == LEAST_WORTH
    run(price, rows=1, plain_s=0.001, per_draft_s=0.0004, share=0.6)
    assert price.least_worth(1) == pytest.approx(1.6, abs=0.1)
    assert price.pays(1)  # each request decides
    assert price.least_worth(8) == LEAST_WORTH  # other numbers of rows are apart


def test_with_many_rows_the_price_decides_for_all_of_them() -> None:
    price = DraftPrice()
    run(price, rows=8, plain_s=0.001, per_draft_s=0.00008, share=0.8)
    assert price.pays(8) and price.least_worth(8) == LEAST_WORTH
