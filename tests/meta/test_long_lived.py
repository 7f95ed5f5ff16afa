"""Every task and thread that lives long is supervised, or its end is noticed by who needs it.

The calls that begin one are found in the source. What ends with a request or a call is listed here,
with who hears of its end; everything else goes through `observability.supervise`, and has a row in
docs/explanation/processes.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "docs/explanation/processes.md"
BEGINNINGS = ("create_task", "ensure_future", "Thread", "Timer", "start_new_thread")
SUPERVISED = ("supervised", "supervised_thread")

AWAITED = "who began it awaits it, and gets what it raises"
A_REQUEST = "ends with its request, which gets what it raises"
A_PEER = "ends with one connection, which is closed whatever it raises"
ENDS_ALL = "its last act, whatever it raises, is to tell the process, which ends or says so"
SETTLES = "catches everything, and gives it to who waits for the result"

KNOWN = {
    "core/dovetail/engine/client/fleet.py::Fleet._note_death": AWAITED,
    "core/dovetail/engine/client/host.py::EngineThread.__init__": ENDS_ALL,
    "core/dovetail/engine/client/offline/sync_engines.py::_LoopThread.__init__": "an event loop",
    "core/dovetail/engine/client/offline/sync_engines.py::_LoopThread.begin.create": A_REQUEST,
    "core/dovetail/engine/client/text/text_process.py::_Lane._do": AWAITED,
    "plugins/dovetail_plugins/apis/admin/engines.py::_remove": AWAITED,
    "plugins/dovetail_plugins/apis/admin/pause.py::pause": AWAITED,
    "plugins/dovetail_plugins/supervised/supervisor.py::Server.__init__": "ends with the server",
    "plugins/dovetail_plugins/gateway/fleet.py::Fleet._change": A_REQUEST,
    "plugins/dovetail_plugins/gateway/fleet.py::Fleet._end": "its fault is logged",
    "plugins/dovetail_plugins/gateway/fleet.py::Fleet.let_go": "its change logs its fault",
    "plugins/dovetail_plugins/gateway/forward.py::Forward.__call__": A_REQUEST,
    "plugins/dovetail_plugins/gateway/progress.py::LoadProgress.during": A_REQUEST,
    "plugins/dovetail_plugins/gateway/manage/pulling.py::_last_of": A_REQUEST,
    "plugins/dovetail_plugins/gateway/manage/pulls.py::Pull.__init__": A_REQUEST,
    "plugins/dovetail_plugins/gateway/disaggregated.py::DisaggregatedRouter.__call__": A_REQUEST,
    "plugins/dovetail_plugins/joining/headless.py::_Engine._in_thread": ENDS_ALL,
    "plugins/dovetail_plugins/joining/peers.py::PeerListener._accept": A_PEER,
    "plugins/dovetail_plugins/joining/remote_engine.py::RemoteEngine.watch": ENDS_ALL,
    "core/dovetail/observability/supervise.py::supervised": "supervises",
    "core/dovetail/observability/supervise.py::supervised_thread": "supervises",
    "core/dovetail/processes/process.py::Child.on_exit": ENDS_ALL,
    "core/dovetail/processes/process.py::end_with_parent": ENDS_ALL,
    "plugins/dovetail_plugins/ranks/remote.py::on_launcher_gone": ENDS_ALL,
    "core/dovetail/runner/media/encoder_pass.py::EncoderPass.__init__": SETTLES,
    "plugins/dovetail_plugins/apis/realtime/session.py::Session.run": A_PEER,
    "plugins/dovetail_plugins/apis/responses/routes.py::create_response": "writes the response",
    "core/dovetail/server/generate/adapters.py::ServedAdapters.find": A_REQUEST,
    "core/dovetail/server/generate/streaming.py::EventStream.__call__": A_REQUEST,
    "core/dovetail/server/generate/streaming.py::begun_within": A_REQUEST,
    "core/dovetail/server/generate/streaming.py::cancel_on_disconnect": A_REQUEST,
    "core/dovetail/server/generate/streaming.py::kept_alive": A_REQUEST,
    "core/dovetail/server/generate/streaming.py::merged": A_REQUEST,
    "core/dovetail/server/launch/engine_start.py::starting_engine": AWAITED,
    "core/dovetail/server/launch/event_loop.py::_until_stopped": AWAITED,
    "core/dovetail/structured_output/compiler.py::ConstraintCompiler._in_turn": A_REQUEST,
    "core/dovetail/structured_output/compiler.py::ConstraintCompiler._prepared": A_REQUEST,
    "core/dovetail/processes/uninterrupted.py::uninterrupted": AWAITED,
    "plugins/dovetail_plugins/executors/_in_step.py::InStep.__init__": ENDS_ALL,
    "plugins/dovetail_plugins/executors/uni.py::_WorkThread.__init__": SETTLES,
    "plugins/dovetail_plugins/kv_connectors/_peer_server.py::PeerServer._accept": A_PEER,
    "plugins/dovetail_plugins/stat_loggers/accounts.py::Accounts.__init__": "logs its faults",
    "plugins/dovetail_plugins/stat_loggers/_otlp_sender.py::Sender.close": "ends with the process",
    "plugins/dovetail_plugins/packed_weights/loading.py::loading": "logs its fault",
    "plugins/dovetail_plugins/workers/_second_team.py::SecondTeam.__init__": "does nothing at all",
}
"""Where tasks and threads begin that need no supervisor, and why."""


def calls(node: ast.AST, within: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.Call]]:
    """Return the calls of a module, each with the dotted name of what it is written in."""
    for child in ast.iter_child_nodes(node):
        is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        own = (*within, child.name) if is_named else within
        if isinstance(child, ast.Call):
            yield ".".join(own), child
        yield from calls(child, own)


def called(call: ast.Call) -> str:
    """Return a call's name; nothing for a task of a TaskGroup, which gets what it raises."""
    if isinstance(call.func, ast.Attribute):
        is_of_group = isinstance(call.func.value, ast.Name) and call.func.value.id == "group"
        return "" if is_of_group else call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def found(names: tuple[str, ...]) -> Iterator[tuple[str, ast.Call]]:
    """Return where functions of these names are called in what runs in production."""
    for folder in ("core/dovetail", "plugins/dovetail_plugins", "contrib"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            if "/dovetail_testing/" in name or "/tests/" in name:
                continue
            text = path.read_text()
            if not any(f"{one}(" in text for one in names):
                continue  # most files: parsing them takes a minute
            for within, call in calls(ast.parse(text)):
                if called(call) in names:
                    yield f"{name}::{within}", call


def test_what_lives_long_is_supervised() -> None:
    places = {place for place, _ in found(BEGINNINGS)}
    assert places - KNOWN.keys() == set(), "supervise it, or say here who notices its end"
    assert KNOWN.keys() - places == set(), "nothing begins there any more"


def test_what_is_supervised_has_a_row() -> None:
    table = TABLE.read_text()
    names = [ast.unparse(call.args[0]).strip("f'\"") for _, call in found(SUPERVISED)]
    assert len(names) > 15
    rows = [name.replace("{self.spec.engine}", "N") for name in names]
    assert [name for name in rows if f"| `{name}` |" not in table] == []
