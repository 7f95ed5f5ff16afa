"""The state of each engine, as /health and /engines show it."""

from __future__ import annotations

from typing import Any

from dovetail.engine.client.connection import EngineState


def engine_report(state: EngineState) -> dict[str, Any]:
    """Return the state of one of several engines as JSON."""
    report = {"engine": state.engine, "state": "up", "running": state.running}
    report |= {"waiting": state.waiting}
    if state.machine:
        report["machine"] = state.machine
    if state.restarts:
        report |= {"restarts": state.restarts, "last_death": state.last_reason}
    if state.reason is not None:
        return report | {"state": _end_of(state), "reason": state.reason}
    if state.is_stalled:
        return report | {"state": "stalled", "silent_s": round(state.heartbeat_age_s, 1)}
    if state.is_leaving:
        return report | {"state": "leaving"}
    return report | {"state": "asleep"} if state.asleep else report


def _end_of(state: EngineState) -> str:
    if state.is_leaving:
        return "removed"
    return "restarting" if state.is_restarting else "dead"
