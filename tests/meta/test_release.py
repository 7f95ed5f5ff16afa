"""The release: metadata that agree, and a checklist that finds what is wrong with its files."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from support import release_check, release_files
from support.release_files import Project
from support.release_run import Commands, Failed, Untried

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "dovetail_kernels/cpu/_lib/libdovetail_1.so"
PROJECT = Project(
    name="dovetail-llm",
    version="0.1.0",
    packages=frozenset(("dovetail", "dovetail_kernels")),
    entry_points={"console_scripts": {"dovetail": "a:b"}, "dovetail.drafter": {"NGram": "c:D"}},
    requires_python=">=3.11,<3.14",
    dependencies=frozenset(("torch",)),
    sdist_folders=frozenset(("core", "kernels")),
)
METADATA = """\
Metadata-Version: 2.4
Name: dovetail-llm
Version: 0.1.0
Requires-Python: <3.14,>=3.11
Requires-Dist: torch<2.14,>=2.11
Requires-Dist: ray>=2.40; extra == "ray"
"""
ENTRY_POINTS = "[console_scripts]\ndovetail = a:b\n\n[dovetail.drafter]\nNGram = c:D\n"
WHEEL = {
    "dovetail/__init__.py": "",
    "dovetail_kernels/__init__.py": "",
    LIBRARY: "dt_gemm_base\0dt_gemm_avx2\0",
    "dovetail_llm-0.1.0.dist-info/METADATA": METADATA,
    "dovetail_llm-0.1.0.dist-info/entry_points.txt": ENTRY_POINTS,
    "dovetail_llm-0.1.0.dist-info/licenses/LICENSE": "",
}
NAME = "dovetail_llm-0.1.0-py3-none-manylinux_2_34_x86_64.whl"


def wheel_faults(folder: Path, name: str = NAME, **changes: str | None) -> list[str]:
    """Return the faults of a wheel with some files changed, or left out (None)."""
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in (WHEEL | changes).items():
            if text is not None:
                archive.writestr(path, text)
    return release_files.wheel_faults(folder / name, PROJECT, "x86_64", ["base", "avx2"])


def test_versions_agree_and_the_citation_is_one() -> None:
    assert release_files.metadata_faults(ROOT) == []
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    project = release_files.project_of(ROOT)
    assert str(citation["version"]) == project.version
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'license = "{citation["license"]}"' in pyproject
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"{citation['repository-code']}/security" in policy
    assert len(project.entry_points) > 20 and "torch" in project.dependencies


def test_versions_that_differ_are_found(tmp_path: Path) -> None:
    (tmp_path / "core" / "dovetail").mkdir(parents=True)
    (tmp_path / "core" / "dovetail" / "version.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 0.1.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (2026-12-01)\n")
    assert release_files.metadata_faults(tmp_path) == [
        "CITATION.cff has version 0.1.0, the package 0.2.0.",
        "CHANGELOG.md begins with '0.1.0 (2026-12-01)', not with 0.2.0.",
        "SECURITY.md is missing.",
    ]
    assert release_files.is_dated(tmp_path)


def test_a_wheel_as_it_should_be_has_no_fault(tmp_path: Path) -> None:
    assert wheel_faults(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"tests/test_x.py": ""}, "the wheel has tests, which is not a package of ours."),
        ({"dovetail/__init__.py": None}, "the wheel lacks dovetail/."),
        ({LIBRARY: None}, "the wheel has 0 libraries of native kernels, not 1."),
        ({LIBRARY: "dt_gemm_base\0"}, f"{LIBRARY} has no kernel for avx2."),
        ({"dovetail/x.pyc": ""}, "the wheel has dovetail/x.pyc, which is compiled."),
        (
            {"dovetail_llm-0.1.0.dist-info/entry_points.txt": ENTRY_POINTS.replace("NG", "ng")},
            "entry point NGram of dovetail.drafter differs from pyproject.toml.",
        ),
        (
            {"dovetail_llm-0.1.0.dist-info/METADATA": METADATA.replace("torch<", "numpy<")},
            "the wheel and pyproject.toml differ in numpy.",
        ),
        ({"dovetail_llm-0.1.0.dist-info/licenses/LICENSE": None}, "the wheel has no LICENSE."),
    ],
)
def test_faults_of_a_wheel_are_found(
    changes: dict[str, str | None], fault: str, tmp_path: Path
) -> None:
    assert fault in wheel_faults(tmp_path, **changes)


@pytest.mark.parametrize("platform", ["linux_x86_64", "any", "manylinux_2_34_aarch64"])
def test_a_tag_that_no_index_takes_is_found(platform: str, tmp_path: Path) -> None:
    (fault,) = wheel_faults(tmp_path, name=f"dovetail_llm-0.1.0-py3-none-{platform}.whl")
    assert "expected dovetail_llm-0.1.0-py3-none-manylinux_X_Y_x86_64.whl" in fault


def test_faults_of_an_sdist_are_found(tmp_path: Path) -> None:
    names = {*release_files.IN_SDIST, "kernels/a.cpp", "kernels/a.o", "build/x"} - {"LICENSE"}
    (tmp_path / "empty").touch()
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name in names:
            archive.add(tmp_path / "empty", f"dovetail_llm-0.1.0/{name}")
    sources = ["kernels/a.cpp", "kernels/b.h"]
    assert release_files.sdist_faults(tmp_path / "x.tar.gz", PROJECT, sources) == [
        "the sdist lacks LICENSE.",
        "the sdist lacks kernels/b.h.",
        "the sdist has build.",
        "the sdist has kernels/a.o.",
    ]


def test_faults_of_an_sbom_are_found(tmp_path: Path) -> None:
    ours = {"name": "dovetail_llm", "version": "0.0.9", "url": "file:///home/x.whl"}
    bom = {"bomFormat": "SPDX", "components": [ours]}
    (tmp_path / "sbom.json").write_text(json.dumps(bom))
    assert release_files.sbom_faults(tmp_path / "sbom.json", PROJECT) == [
        "the SBOM lacks torch.",
        "the SBOM names file:///home/x.whl of this machine.",
        "the SBOM's format is SPDX, not CycloneDX.",
        "the SBOM has dovetail-llm 0.0.9, not 0.1.0.",
    ]


def test_the_image_drops_files_as_the_checklist_does(tmp_path: Path) -> None:
    dockerfile = (ROOT / release_check.DOCKERFILE).read_text(encoding="utf-8")
    commands = release_files.trimmings_of(dockerfile)
    assert len(commands) == dockerfile.count('"$SITE" ') + dockerfile.count('rm -rf "$SITE"')
    for name in ("torch/include/a.h", "numpy/tests/test_a.py", "numpy/testing/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("text")
    for command in commands:
        Commands(tmp_path / "logs").run("sh", "-c", command, env={"SITE": str(tmp_path)})
    assert [path.name for path in tmp_path.rglob("a.*")] == ["a.py"]
    assert release_files.bytes_below(tmp_path / "numpy") == len("text")


def test_every_step_has_a_row_and_a_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails() -> str:
        return Commands(tmp_path).run("sh", "-c", "echo it broke; exit 3")

    def cannot() -> str:
        raise Untried("no such Python")

    results = release_check.run_steps([("one", lambda: "fine"), ("two", fails), ("three", cannot)])
    assert results == {"one": "passed", "two": "FAILED", "three": "not tried"}
    _, _, one, two, three = capsys.readouterr().out.splitlines()
    assert one.endswith("| fine |")
    assert "ended with 3: it broke" in two and "| no such Python |" in three
    with pytest.raises(Failed, match=r"^a\. b\. c\. \(1 more\)$"):
        release_check.check(["a.", "b.", "c.", "d."])


def test_a_build_on_windows_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling", reason="comes with the extra `test`")
    spec = importlib.util.spec_from_file_location("hook", ROOT / "kernels" / "hatch_build.py")
    assert spec and spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OSError, match=r"does not run on Windows: .* WSL 2\.$"):
        hook.NativeKernels.initialize(None, "standard", {})
