"""The Python snippets of README, docs/how_to, docs/tutorials and the page of LLM run as they are.

Snippets of one page share their names, in order. One that needs what a test has not is listed with
the reason, and is compiled at least.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dovetail import LLM

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "docs/reference/llm.md",
        *(ROOT / "docs/how_to").glob("*.md"),
        *(ROOT / "docs/tutorials").glob("*.md"),
    ]
)
SERVER, HUB, OWN = (
    "asks a server",
    "loads a model of the hub",
    "is a part of a program of the reader",
)
NOT_RUN = {
    ("docs/how_to/adapters.md", 1): HUB,
    ("docs/how_to/call_workers.md", 0): OWN,
    ("docs/how_to/call_workers.md", 1): OWN,
    ("docs/how_to/call_workers.md", 2): OWN,
    ("docs/how_to/embed_and_score.md", 0): HUB,
    ("docs/how_to/embeddings.md", 0): SERVER,
    ("docs/how_to/many_devices.md", 0): "is started by torchrun",
    ("docs/how_to/speak.md", 0): SERVER,
    ("docs/how_to/speak.md", 1): HUB,
    ("docs/how_to/train_beside_serving.md", 1): OWN,
    ("docs/how_to/train_beside_serving.md", 2): SERVER,
    ("docs/how_to/train_beside_serving.md", 3): OWN,
    ("docs/how_to/transcribe.md", 0): SERVER,
    ("docs/how_to/transcribe_live.md", 0): SERVER,
    ("docs/how_to/transcribe_live.md", 1): SERVER,
    ("docs/how_to/use_langchain.md", 0): SERVER,
    ("docs/how_to/use_openai_agents.md", 0): SERVER,
    ("docs/how_to/use_pydantic_ai.md", 0): SERVER,
    ("docs/tutorials/add_a_model_family.md", 2): "needs the package that the page builds",
}
DEMO = 'LLM("MODEL"', 'LLM(model="MODEL"'
"""Where a page leaves the model to the reader, the demo model takes its place."""


def snippets(page: Path) -> list[str]:
    """Return the Python snippets of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def imports(code: str) -> str:
    """Return the imports of dovetail of a snippet, which must work even where it cannot run."""
    found = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dovetail")
    ]
    return "\n".join(ast.unparse(node) for node in found)


def run(code: str, names: dict[str, Any]) -> None:
    """Run a snippet with the demo model. Mutates: names"""
    for spelling in DEMO:
        code = code.replace(spelling + ", ", "LLM(").replace(spelling, "LLM(")
    exec(compile(code, "snippet", "exec"), names)  # noqa: S102  (the pages are ours)


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p)], ids=name_of)
def test_snippets_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("snippet")
    monkeypatch.setitem(sys.modules, "snippet", module)
    names = vars(module)
    try:
        for at, code in enumerate(snippets(page)):
            compile(code, "snippet", "exec")
            run(imports(code), {})
            if (name_of(page), at) not in NOT_RUN:
                run(code, names)
    finally:
        if isinstance(names.get("llm"), LLM):
            names["llm"].close()
    if page.name == "README.md":
        assert "The capital of Japan is Tokyo." in capsys.readouterr().out


def test_every_exception_is_a_snippet() -> None:
    there = {(name_of(page), at) for page in PAGES for at in range(len(snippets(page)))}
    assert set(NOT_RUN) <= there
