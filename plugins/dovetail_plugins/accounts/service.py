"""The accounts of this process, for its route; and where accounts usually are."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dovetail_plugins.accounts.ledger import Ledger
from dovetail_plugins.state_folder import state_folder


class LiveAccounts(Protocol):
    """Accounts that this process adds to."""

    @property
    def ledger(self) -> Ledger: ...

    def read(self) -> None:
        """Add what has ended to the ledger."""


SERVED: dict[Path, LiveAccounts] = {}
"""By folder; one in a server."""


def usual_folder() -> Path:
    """Return the folder of accounts unless an option names another."""
    return state_folder() / "accounts"
