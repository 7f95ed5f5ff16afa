"""The process that compiles constraints, as its parent sees it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dovetail.config.model_path import DEMO_PATH
from dovetail.config.selections import select
from dovetail.guided.compiler import GuideCompiler
from dovetail.interfaces.form import Literal
from dovetail.interfaces.spec import GuidedSpec
from dovetail.testing.impostors import make_impostors


def spec() -> GuidedSpec:
    """Return a spec over the demo model's vocabulary."""
    return GuidedSpec(
        tokenizer=select("tokenizer", "hf"),
        tokenizer_path=str(DEMO_PATH),
        eos_ids=(2041,),
        vocab_size=2048,
        backends=(select("guided_decoding_backend", "guidance"),),
    )


def test_it_runs_no_code_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = make_impostors(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")

    async def body() -> None:
        guides = GuideCompiler(spec())
        try:
            assert (await guides.guide(Literal("x"), where="f")).artifact
        finally:
            await guides.close()
            assert note.read_text() == ""

    asyncio.run(body())
