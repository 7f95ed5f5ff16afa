"""An API process that hangs is noticed where a step may not take for ever."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.server.launch import api_processes
from dovetail.server.launch.api_processes import BEAT, _Beats


def test_a_silent_process_is_named_and_a_stopped_parent_blames_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(api_processes, "SILENCE_S", 5.0)
    pairs = [socket.socketpair() for _ in range(2)]
    children: list[Any] = []
    for ours, _ in pairs:
        ours.setblocking(False)
        children.append(SimpleNamespace(channel=ours))
    limited, patient = _Beats(children, 2.0), _Beats([], None)
    told = []
    for _ in range(8):
        now_s[0] += 1.0
        pairs[0][1].sendall(BEAT)
        told.append(limited.silence())
    assert told == [None] * 5 + [f"server process 1 has been silent for {n} s" for n in (6, 7, 8)]
    assert patient.silence() is None
    now_s[0] += 60.0  # this process was stopped: nobody's fault
    assert limited.silence() is None
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
