"""What tests of whole engines share."""

from __future__ import annotations

import pytest

from dovetail.engine.parts.draft_price import DraftPrice


@pytest.fixture(autouse=True)
def drafts_whatever_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft however long it takes: times of tiny models beside other tests say nothing."""
    monkeypatch.setattr(DraftPrice, "pays", lambda self, num_rows: True)
