"""The package contrib/vllm-compat, importable and known to the registry while its tests run."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dovetail import registry
from dovetail.registry import discovery
from support.vllm_files import PACKAGE

sys.path.insert(0, str(PACKAGE))
import dovetail_vllm_compat  # noqa: F401

sys.path.remove(str(PACKAGE))


@pytest.fixture(autouse=True)
def importer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the registry find the package as it does in a checkout, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    discovery.forget()
    with registry.admin.with_entries({}):
        yield
    monkeypatch.undo()
    discovery.forget()
