"""--cpu-cores: the list, and what this process may not use."""

from __future__ import annotations

import pytest

from dovetail.config.rules.machine import cores, platform
from dovetail.config.rules.machine.cores import chosen_cores, parse_cores
from dovetail.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "found"),
    [("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("8, 0-1,1", (0, 1, 8)), ("7-7", (7,))],
)
def test_lists(text: str, found: tuple[int, ...]) -> None:
    assert parse_cores(text) == found


@pytest.mark.parametrize("text", ["", "a", "3-1", "0,,1", "-1", "0-", "1.5", "0x1"])
def test_no_lists(text: str) -> None:
    with pytest.raises(ConfigError, match="not a list of processors"):
        parse_cores(text)


def test_only_what_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_processors", lambda: {0, 1, 2, 5})
    assert chosen_cores("0-1,5") == (0, 1, 5)
    assert chosen_cores(None) == ()
    with pytest.raises(ConfigError, match=r"may not use 3-4, 6") as caught:
        chosen_cores("2-6")
    assert caught.value.fix == "choose among 0-2, 5."


def test_the_threads_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hardware threads of one core are one thread of the engine's."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(platform, "core_of", lambda cpu: str(cpu // 2))
    monkeypatch.setattr(platform, "quota_cores", lambda: None)
    assert platform.default_threads((0, 1, 2)) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert platform.default_threads((0, 1, 2)) == 0
