"""Imports run one way, and the light modules stay light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels"))
HEAVY = ("torch", "transformers", "fastapi", "pydantic", "uvicorn", "tokenizers", "zmq")


def modules_after(code: str) -> set[str]:
    """Return the top-level modules loaded once `code` has run in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    env = os.environ | {"PYTHONPATH": PATHS}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import dovetail",
        "import dovetail.interfaces",
        "import dovetail.registry as r; [r.names(k) for k in r.KINDS]",
        "import dovetail.config",
        "import dovetail.cli.main",
    ],
)
def test_light_imports(code: str) -> None:
    loaded = modules_after(code)
    assert not loaded & set(HEAVY)
    assert "dovetail_plugins" not in loaded


def test_help_is_light() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from dovetail.cli.main import main\n"
        "for argv in (['--help'], ['serve', '--help'], ['plugins', 'list']):\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        main(argv)\n"
        "others = [m for m in sys.modules if m.startswith('dovetail_plugins.')]\n"
        "assert {m.split('.')[1] for m in others} == {'commands'}, others\n"
    )
    loaded = modules_after(code)
    assert not loaded & {"torch", "transformers", "fastapi", "pydantic"}


def test_the_api_process_needs_no_torch() -> None:
    loaded = modules_after("import dovetail.server.app, dovetail.server.launch.serve")
    assert not loaded & {"torch", "transformers"}


def test_a_load_on_a_server_needs_no_engine() -> None:
    code = (
        "import contextlib, io\n"
        "from dovetail.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['bench', 'serve', '--help=all'])\n"
        "with contextlib.redirect_stderr(io.StringIO()):\n"
        "    assert main(['bench', 'serve', '--base-url', 'http://127.0.0.1:9']) == 1\n"
        "import dovetail_plugins.bench.serve_report\n"
        "from dovetail_plugins.bench.prompts import load_tokenizer\n"
        "from dovetail.config.checkpoint.sources.model_path import DEMO_PATH\n"
        "load_tokenizer(DEMO_PATH)\n"
    )
    loaded = modules_after(code)
    assert not loaded & {"torch", "transformers", "fastapi", "pydantic", "uvicorn", "zmq", "numpy"}


def test_offline_engine_needs_no_web_server() -> None:
    loaded = modules_after("from dovetail import LLM, SamplingParams")
    assert not loaded & {"fastapi", "uvicorn", "starlette"}
