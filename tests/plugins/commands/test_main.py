"""Exit codes, the last lines of an error, and the ways to start the command."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.errors import ConfigError, EngineDead
from dovetail.version import __version__
from support.impostors import make_impostors

ROOT = Path(__file__).resolve().parents[3]


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: dovetail" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dovetail {__version__}\n"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "fix: did you mean serve?"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Stand in for the server: keep the configs it is started with."""
    seen: list[Config] = []
    module = types.ModuleType("dovetail.server.launch.serve")
    package = types.ModuleType("dovetail.server.launch")

    def launch(config: Config) -> int:
        seen.append(config)
        return 7

    module.run = launch  # type: ignore[attr-defined]
    package.serve = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dovetail.server.launch", package)
    monkeypatch.setitem(sys.modules, "dovetail.server.launch.serve", module)
    return seen


def test_serve_hands_its_config_over(launched: list[Config]) -> None:
    assert main(["serve", "some/model", "--port", "1", "--verbose"]) == 7
    assert launched[0].model.model == "some/model"
    assert launched[0].frontend.port == 1
    assert launched[0].frontend.tool_call_parser is None


def test_serve_without_a_model_takes_the_demos_parsers(launched: list[Config]) -> None:
    pytest.importorskip("dovetail_plugins")
    assert main(["serve", "--reasoning-parser", "deepseek_r1"]) == 7
    frontend = launched[0].frontend
    assert frontend.enable_auto_tool_choice
    assert (frontend.tool_call_parser, frontend.reasoning_parser) == ("hermes", "deepseek_r1")


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: Config) -> int:
        raise error

    monkeypatch.setattr(sys.modules["dovetail.server.launch.serve"], "run", run)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("it is wrong.", where="--port", fix="use another."), 2),
        (EngineDead("it died.", where="engine", fix="look above."), 1),
    ],
)
def test_errors_end_with_cause_and_fix(
    error: Exception,
    status: int,
    launched: list[Config],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(error, monkeypatch)
    monkeypatch.delenv("DOVETAIL_VERBOSE", raising=False)
    assert main(["serve", "some/model"]) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("dovetail: error: ")
    assert lines[1].startswith("fix: ")


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_verbose_shows_the_traceback_before_the_cause(
    way: str,
    launched: list[Config],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(ConfigError("it is wrong.", fix="mend it."), monkeypatch)
    if way == "variable":
        monkeypatch.setenv("DOVETAIL_VERBOSE", "1")
    assert main(["serve", "some/model", *(["--verbose"] if way == "flag" else [])]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "fix: mend it."


def test_interruption_is_130(launched: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert main(["serve", "some/model"]) == 130


def test_faults_of_flags_are_found_before_the_server_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "dovetail.server", None)
    assert main(["serve", "--port", "many"]) == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("way", [["core/dovetail"], ["-m", "dovetail"]])
def test_starts_in_a_checkout(way: list[str]) -> None:
    roots = os.pathsep.join(str(ROOT / name) for name in ("core", "plugins", "kernels"))
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if way[0] == "-m":
        env["PYTHONPATH"] = roots
    done = subprocess.run(
        [sys.executable, *way, "serve", "--help=scheduling-policy"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fcfs" in done.stdout


def test_python_m_dovetail_imports_no_package_of_the_working_folder(tmp_path: Path) -> None:
    note = make_impostors(tmp_path / "work")
    for name in (*sys.stdlib_module_names, "dovetail"):  # those, -m itself takes from there
        (tmp_path / "work" / f"{name}.py").unlink(missing_ok=True)
    roots = [str(ROOT / name) for name in ("core", "plugins", "kernels")]
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "config", "show"],
        cwd=tmp_path / "work",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(roots)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, note.read_text()) == (0, ""), done.stderr


def test_public_names() -> None:
    import dovetail

    assert dovetail.SamplingParams(n=2).n == 2
    assert set(dovetail.__all__) <= set(dir(dovetail))
    with pytest.raises(AttributeError):
        _ = dovetail.nothing  # type: ignore[attr-defined]
