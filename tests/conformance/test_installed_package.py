"""A plugin package of its own, installed as a wheel beside dovetail's wheel, passes the kit.

Nothing of the checkout is on the path of the new environment, and nothing is fetched: the heavy
packages are taken from the environment that runs the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = (
    "scheduling_policy:shortest_prompt",
    "logits_processor:repeat_guard",
    "tool_parser:bracket_calls",
    "structured_output_backend:word_list",
    "quantization:bitnet",
    "load_format:npz",
)
DEVICE = (
    "platform:pretend",
    "worker:pretend",
    "scheduler:pretend_buckets",
    "kv_policy:pretend_reserve",
)
PACKAGES = ("example-plugin", "pretend-device", "vllm-compat")

pytestmark = pytest.mark.timeout(900)  # one run of the whole kit serves them all
SKIPPED = shutil.ignore_patterns(".git", "__pycache__", "dist", "build", ".venv", "*_cache")


def run(*words: str | Path, **changes: str) -> str:
    """Run a command outside the checkout and return what it printed."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DOVETAIL_PLUGINS")}
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        env=env | {"OMP_NUM_THREADS": "1"} | changes,
        cwd="/",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheels installed."""
    folder = tmp_path_factory.mktemp("installed")
    wheels = [wheel_of(part, folder) for part in (ROOT, *(ROOT / "contrib" / p for p in PACKAGES))]
    venv.create(folder / "env", with_pip=False, symlinks=True)
    made = folder / "env" / "bin" / "python"
    site = Path(run(made, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    pip = [sys.executable, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check"]
    run(*pip, "install", "--no-deps", "--no-index", "--target", site, *wheels)
    # A .pth lends the heavy packages; it comes after the environment's own folder on the path.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def wheel_of(source: Path, folder: Path) -> Path:
    """Return the wheel built from a copy of a source folder, without a network."""
    copy = folder / f"source_{source.name}"
    shutil.copytree(source, copy, ignore=SKIPPED)
    (copy / "README.md").touch()
    out = folder / f"wheel_{source.name}"
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
        "--disable-pip-version-check", "--no-index", "-w", out, copy,
        DOVETAIL_WHEEL_SETS="machine")  # fmt: skip
    (wheel,) = out.glob("*.whl")
    return wheel


def test_entry_points_come_from_the_wheels(python: Path) -> None:
    rows = json.loads(run(python, "-m", "dovetail", "plugins", "list", *PLUGINS, "--json"))
    assert [(row["distribution"], row["origin"]) for row in rows] == [
        ("dovetail-example-plugin", "installed")
    ] * len(PLUGINS)
    where = run(python, "-c", "import dovetail, dovetail_plugins; print(dovetail.__file__)")
    assert Path(where.strip()).is_relative_to(python.parents[1])


def test_the_package_passes_the_kit(python: Path) -> None:
    answer = json.loads(run(python, "-m", "dovetail", "plugins", "check", *PLUGINS, "--json"))
    assert answer["status"] == 0
    ran = {row["plugin"] for row in answer["clauses"] if row["outcome"] == "passed"}
    assert ran == {f"{plugin}@dovetail-example-plugin" for plugin in PLUGINS}


def test_a_file_written_for_vllm(python: Path) -> None:
    file = ROOT / "tests" / "contrib" / "plugin_files" / "regex_calls.py"
    code = (
        "import sys; from dovetail.registry import admin; print(admin.load_file(sys.argv[1])[0].id)"
    )
    assert run(python, "-c", code, file).strip() == "regex_calls@regex_calls.py"


@pytest.mark.full_only
def test_the_device_passes_the_kit(python: Path) -> None:
    words = ("-m", "dovetail", "plugins", "check", *DEVICE, "--json")
    answer = json.loads(run(python, *words, PRETEND_DEVICE="1"))
    assert answer["status"] == 0
    ran = {row["plugin"] for row in answer["clauses"] if row["outcome"] == "passed"}
    assert ran == {f"{plugin}@dovetail-pretend-device" for plugin in DEVICE}


def test_it_can_be_shut_out(python: Path) -> None:
    words = ("-m", "dovetail", "plugins", "list", "scheduling_policy", "--json")
    rows = json.loads(run(python, *words, DOVETAIL_PLUGINS=""))
    assert {row["distribution"] for row in rows} == {"dovetail-llm"}
