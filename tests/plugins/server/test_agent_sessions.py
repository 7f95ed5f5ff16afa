"""Ten turns of coding agents: the prefix cache has what they repeat, whatever they re-order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.stats import RequestStats
from dovetail_plugins.stat_loggers._prefix_breaks import PrefixBreak, PrefixBreaks
from support.agent_sessions import (
    Chat,
    Habits,
    Messages,
    Program,
    Responses,
    answers,
    share_of_repeated,
    write_model,
)
from support.samples import IS_FULL
from support.whole_app import whole_client

pytestmark = pytest.mark.usefixtures("with_test_models")


def compact(text: str) -> str:
    """Write arguments as JavaScript does."""
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


def ordered(text: str) -> str:
    """Write arguments as Go does: names in order."""
    return json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True)


SPELLINGS: dict[str, Callable[[Any], str]] = {
    "as-the-template": lambda value: json.dumps(value, ensure_ascii=False),
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "over-lines": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
}
PROGRAMS: dict[str, tuple[type[Program], Habits]] = {
    "codex": (Responses, Habits(rewrites=ordered)),
    "claude-code": (Messages, Habits(shuffles_tools=True)),
    "opencode": (Chat, Habits(rewrites=compact)),
    "cline": (Chat, Habits(shuffles_names=True, rewrites=ordered)),
    "aider": (Chat, Habits(shuffles_tools=True, shuffles_names=True)),
}
OFF = json.dumps({"renderer": {"follows_earlier_turns": False}})
THINKING = json.dumps({"enable_thinking": True})
"""Without it the model's turn opens with empty thoughts, which the template later leaves out."""
FLAGS = (
    *("--stat-loggers", "prometheus", "--tool-call-parser", "hermes"),
    *("--default-chat-template-kwargs", THINKING),
)


class Ended(list[RequestStats]):
    """What the stat loggers get of each request, and the breaks that they find."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks: list[PrefixBreak | None] = []


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Return the requests that end from now on."""
    ended, note = Ended(), PrefixBreaks.note

    def noting(self: PrefixBreaks, stats: RequestStats) -> PrefixBreak | None:
        ended.append(stats)
        ended.breaks.append(note(self, stats))
        return ended.breaks[-1]

    monkeypatch.setattr(PrefixBreaks, "note", noting)
    return ended


def shares_of(
    model: Path, requests: Ended, programs: Iterable[str], *flags: str
) -> dict[str, float]:
    """Return for each program the share of what its session repeats that is cached."""
    shares = {}

    async def main() -> None:
        async with whole_client(model, *FLAGS, *flags) as client:
            for name in programs:
                requests.clear()
                program, habits = PROGRAMS[name]
                await program(habits, name).run(client)
                shares[name] = share_of_repeated(requests)

    asyncio.run(main())
    return shares


@pytest.mark.parametrize(
    ("spelling", "programs"),
    [
        ("compact", PROGRAMS if IS_FULL else ["aider"]),
        ("as-the-template", ["opencode", "cline"]),
        ("over-lines", ["codex", "claude-code"]),
    ],
)
def test_what_a_session_repeats_comes_from_the_cache(
    spelling: str, programs: Iterable[str], requests: Ended, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m", answers(SPELLINGS[spelling]))
    shares = shares_of(model, requests, programs)
    assert min(shares.values()) >= 0.98, shares
    assert not any(requests.breaks)


def test_without_the_option_a_new_order_of_tools_breaks_the_prefix(
    requests: Ended, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m", answers(SPELLINGS["compact"]))
    shares = shares_of(model, requests, ["aider"], "--plugin-options", OFF)
    assert shares["aider"] < 0.5
    first, *later = requests.breaks
    assert first is None
    assert len(later) == 9
    for found in later:
        assert found is not None
        assert found.why == "changed"
