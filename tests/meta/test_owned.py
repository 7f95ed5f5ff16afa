"""What a request takes is given back by a block: a cancellation at any `await` gives it back too.

`asyncio.wait_for` is banned by ruff (pyproject.toml): Python 3.11's loses a result that comes as
its caller is cancelled. Here: places in the queue, locks taken by hand, and what is opened within
a time limit.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from support.parsed import nodes_of

ROOT = Path(__file__).parents[2]
PARTS = ("core/dovetail", "plugins/dovetail_plugins")
IN_BLOCKS = ("admit", "lease")
"""What is taken by these is a context manager."""
BY_HAND = {
    "plugins/dovetail_plugins/batch/drive.py": "a line's task gives its own place back",
    "plugins/dovetail_plugins/joining/peers.py": "a peer's thread gives its own place back",
    "core/dovetail/parallel/halves.py": "two threads take turns",
    "core/dovetail/runner/media/encoder_pass.py": "two threads take turns",
    "plugins/dovetail_plugins/apis/batches/runner.py": "a line's task gives its own place back",
    "core/dovetail/structured_output/compiler.py": "the turn is left to the task that compiles",
}
"""Files that acquire without a block, and who releases."""
OPENERS = frozenset(
    ["acquire", "admit", "connect", "create_connection", "create_subprocess_exec", "create_task",
     "create_unix_connection", "ensure_future", "lease", "open", "open_connection",
     "open_unix_connection", "spawn"]
)  # fmt: skip
OPENED_IN_TIME = {
    "plugins/dovetail_plugins/bench/client.py": "a connection that is made is closed by `finally`",
    "plugins/dovetail_plugins/http_client/connections.py": "the event loop closes it",
    "core/dovetail/structured_output/compiler.py": "a lock that is cancelled is not taken",
}
"""Files that open something within `asyncio.timeout`, and why nothing stays open."""


def _files(*words: str) -> Iterator[tuple[str, list[ast.AST]]]:
    """Yield the names of files that have one of the words, and all nodes of each."""
    for path in (path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))):
        source = path.read_text(encoding="utf-8")
        if any(word in source for word in words):
            yield str(path.relative_to(ROOT)), nodes_of(source)


def _method(node: ast.AST) -> str:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.attr if is_method else ""  # type: ignore[attr-defined]


def _called(node: ast.AST) -> str:
    """Return the name of what is called: a method, or a function."""
    is_function = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if is_function else _method(node)  # type: ignore[attr-defined]


def _in_blocks(nodes: list[ast.AST]) -> set[ast.AST]:
    """Return the calls that a block or an exit stack closes."""
    found: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.With | ast.AsyncWith):
            found.update(item.context_expr for item in node.items)
        if _method(node) in ("enter_context", "enter_async_context"):
            found.update(node.args)  # type: ignore[attr-defined]
    return found


def _receiver(call: ast.AST) -> str:
    return ast.unparse(call.func.value)  # type: ignore[attr-defined]


def test_a_place_in_the_queue_is_closed_by_a_block() -> None:
    taken = 0
    for name, nodes in _files(*IN_BLOCKS):
        closed = _in_blocks(nodes)
        for node in nodes:
            if _method(node) in IN_BLOCKS and _receiver(node).endswith(("admission", "fleet")):
                if name.startswith("core/dovetail/engine/"):
                    continue  # the engine's own, which has no event loop
                taken += 1
                assert node in closed, f"{name}:{node.lineno}: use `with` or an exit stack"  # type: ignore[attr-defined]
    assert taken >= 9


def test_locks_are_taken_by_blocks() -> None:
    by_hand = {
        name
        for name, nodes in _files("acquire")
        if any(_method(node) == "acquire" for node in nodes)
    }
    assert by_hand == set(BY_HAND)


def _timed(nodes: list[ast.AST]) -> Iterator[ast.AsyncWith]:
    for node in nodes:
        if isinstance(node, ast.AsyncWith) and any(
            _method(item.context_expr) in ("timeout", "timeout_at") for item in node.items
        ):
            yield node


def test_what_is_opened_within_a_time_limit_is_closed_by_a_block() -> None:
    found = set()
    for name, nodes in _files("timeout"):
        closed = _in_blocks(nodes)
        for block in _timed(nodes):
            inner = [node for line in block.body for node in ast.walk(line)]
            if any(_called(node) in OPENERS and node not in closed for node in inner):
                found.add(name)
    assert found == set(OPENED_IN_TIME)


def test_ruff_refuses_wait_for_and_checks_every_folder() -> None:
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    banned = ruff["lint"]["flake8-tidy-imports"]["banned-api"]
    assert "asyncio.wait_for" in banned and "TID" in ruff["lint"]["select"]
    allowed = ruff["lint"].get("per-file-ignores", {})
    assert not [where for where, rules in allowed.items() if "TID251" in rules or "TID" in rules]
    for name, nodes in _files("wait_for"):
        names = {getattr(node, "attr", "") for node in nodes}
        imported = {a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
        is_asyncio = any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for"
            for node in nodes
        )
        assert not is_asyncio and "wait_for" not in imported, (name, names & {"wait_for"})
