"""A scheduling policy in a package of its own: docs/tutorials/write_a_plugin.md, step by step."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dovetail.processes.process import child_environment

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorials" / "write_a_plugin.md").read_text(encoding="utf-8")
OPENING = "class ShortestPrompt(SchedulingPolicy):\n    ...\n"
FILE, MOVING, OPTIONS = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
(PROJECT,) = re.findall(r"```toml\n(.*?)```", TUTORIAL, re.DOTALL)


def with_options() -> str:
    """Return the first file after the third step."""
    imports, opening, body = OPTIONS.partition(OPENING)
    assert opening
    return imports + FILE[: FILE.index("    def key(")] + body.lstrip("\n")


def plugins(*args: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Return what `dovetail plugins` does in a folder, with a folder of packages on the path."""
    env = child_environment()
    env["PYTHONPATH"] = f"{path}:{env.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "dovetail", "plugins", *args]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, check=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return the folder of the tutorial after its last step."""
    folder = tmp_path / "my_policies"
    folder.mkdir()
    files = {"__init__.py": "", "shortest.py": with_options(), "least_work.py": MOVING}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    return tmp_path


def test_the_files_of_each_step_pass_the_check(package: Path) -> None:
    file = package / "my_policies/shortest.py"
    name = "scheduling_policy:my_policies/shortest.py:ShortestPrompt"
    for text in (FILE, with_options()):
        file.write_text(text, encoding="utf-8")
        done = plugins("check", name, cwd=package)
        line = f"{name}@shortest.py: 20 passed"
        assert line in done.stdout and line in TUTORIAL
    other = "scheduling_policy:my_policies/least_work.py:LeastWorkLeft"
    assert ": 20 passed" in plugins("check", other, cwd=package).stdout


def test_a_failing_clause_is_shown_as_on_the_page(package: Path) -> None:
    file = package / "my_policies/shortest.py"
    file.write_text(re.sub(r'    """A request.*\n\n', "", FILE), encoding="utf-8")
    name = "scheduling_policy:my_policies/shortest.py:ShortestPrompt"
    done = plugins("check", name, cwd=package)
    assert done.returncode == 1
    (said,) = re.findall(r".* fails says_what_it_is\n.*\n.*\n", done.stdout)
    assert said.replace(str(package), "/home/you") in TUTORIAL
    still = re.sub("    keys_move = True\n", "", MOVING)
    (package / "my_policies/least_work.py").write_text(still, encoding="utf-8")
    other = "scheduling_policy:my_policies/least_work.py:LeastWorkLeft"
    assert "fails a_key_that_moves_is_declared" in plugins("check", other, cwd=package).stdout


def test_the_installed_package_is_listed_and_passes(package: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=package, check=True, capture_output=True)
    (wheel,) = (package / "dist").glob("*.whl")
    installed = package / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    rows = plugins("list", "scheduling_policy", cwd=package, path=str(installed)).stdout
    assert re.search(r"shortest_prompt +my-policies +my_policies.shortest:ShortestPrompt", rows)
    name = "scheduling_policy:shortest_prompt"
    done = plugins("check", name, cwd=installed, path=str(installed))
    assert f"{name}@my-policies: 20 passed" in done.stdout
