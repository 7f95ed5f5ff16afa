"""What the files of a release must hold: versions that agree, the sdist, the wheel, the SBOM.

Each check reads files only and returns its faults as sentences. `release_check` makes the files.
"""

from __future__ import annotations

import configparser
import json
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath

LIBRARY = "dovetail_kernels/cpu/_lib/libdovetail_*.so"
COMPILED = (".so", ".o", ".pyc", ".gch")
IN_SDIST = (
    *("pyproject.toml", "PKG-INFO", "README.md", "LICENSE"),
    *("CHANGELOG.md", "CITATION.cff", "SECURITY.md", "Makefile"),
    *("kernels/build_backend.py", "kernels/hatch_build.py"),
    "kernels/dovetail_kernels/cpu/recipe.py",
)
EntryPoints = dict[str, dict[str, str]]
"""Group -> name -> target, as in entry_points.txt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What pyproject.toml says, and the version."""

    name: str
    version: str
    packages: frozenset[str]
    entry_points: EntryPoints
    requires_python: str
    dependencies: frozenset[str]
    sdist_folders: frozenset[str]

    @property
    def stem(self) -> str:
        """Return how names of the project's files begin."""
        return f"{self.name.replace('-', '_')}-{self.version}"


def project_of(root: Path) -> Project:
    """Return what a checkout's pyproject.toml says."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project, build = table["project"], table["tool"]["hatch"]["build"]["targets"]
    return Project(
        name=project["name"],
        version=version_of(root),
        packages=frozenset(PurePosixPath(path).name for path in build["wheel"]["packages"]),
        entry_points={"console_scripts": project["scripts"], **project["entry-points"]},
        requires_python=project["requires-python"],
        dependencies=frozenset(map(distribution_of, project["dependencies"])),
        sdist_folders=frozenset(build["sdist"]["include"]),
    )


def version_of(root: Path) -> str:
    """Return the version that core/dovetail/version.py states."""
    text = (root / "core" / "dovetail" / "version.py").read_text(encoding="utf-8")
    return _found(r'^__version__ = "(.+)"$', text)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else ""


def distribution_of(requirement: str) -> str:
    """Return the normal form of the name that a requirement begins with."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


def metadata_faults(root: Path) -> list[str]:
    """Return where CITATION.cff, SECURITY.md and CHANGELOG.md differ from the package."""
    version = version_of(root)
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    heading = _found(r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    faults = []
    if not version:
        faults.append("core/dovetail/version.py states no version.")
    if (cited := _found(r"^version: *(.+)$", citation)) != version:
        faults.append(f"CITATION.cff has version {cited}, the package {version}.")
    if heading.split()[:1] != [version]:
        faults.append(f"CHANGELOG.md begins with {heading!r}, not with {version}.")
    if not (root / "SECURITY.md").is_file():
        faults.append("SECURITY.md is missing.")
    return faults


def is_dated(root: Path) -> bool:
    """Return whether the first heading of the changelog has a date."""
    heading = _found(r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return re.search(r"\d{4}-\d\d-\d\d", heading) is not None


def sdist_faults(path: Path, project: Project, sources: Iterable[str]) -> list[str]:
    """Return what is missing from an sdist or must not be in it.

    `sources`: the paths of the kernels' C++ files, relative to the root of the checkout.
    """
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    allowed = project.sdist_folders | {*IN_SDIST, ".gitignore"}
    strange = {name.partition("/")[0] for name in names if name} - allowed
    return [
        *(f"the sdist lacks {name}." for name in sorted({*IN_SDIST, *sources} - names)),
        *(f"the sdist has {name}." for name in sorted(strange)),
        *(f"the sdist has {name}." for name in sorted(names) if name.endswith(COMPILED)),
    ]


def wheel_faults(path: Path, project: Project, machine: str, isas: Sequence[str]) -> list[str]:
    """Return what is wrong with a wheel for a machine type, whose library has `isas`."""
    faults = list(_tag_faults(path, project, machine))
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        info = f"{project.stem}.dist-info"
        top = {name.partition("/")[0] for name in names}
        faults += [f"the wheel lacks {name}/." for name in sorted(project.packages - top)]
        strange = sorted(top - project.packages - {info})
        faults += [f"the wheel has {name}, which is not a package of ours." for name in strange]
        faults += _library_faults(archive, isas)
        if info in top:
            faults += _info_faults(archive, info, project)
    return faults


def _tag_faults(path: Path, project: Project, machine: str) -> Iterable[str]:
    if not re.fullmatch(
        rf"{re.escape(project.stem)}-py3-none-manylinux_\d+_\d+_{machine}\.whl", path.name
    ):
        yield (
            f"the wheel is called {path.name}; expected "
            f"{project.stem}-py3-none-manylinux_X_Y_{machine}.whl."
        )


def _library_faults(archive: zipfile.ZipFile, isas: Sequence[str]) -> Iterable[str]:
    names = archive.namelist()
    libraries = [name for name in names if PurePosixPath(name).match(LIBRARY)]
    others = sorted({name for name in names if name.endswith(COMPILED)} - {*libraries})
    yield from (f"the wheel has {name}, which is compiled." for name in others)
    if len(libraries) != 1:
        yield f"the wheel has {len(libraries)} libraries of native kernels, not 1."
        return
    symbols = archive.read(libraries[0])
    for isa in isas:
        if f"_{isa}\0".encode() not in symbols:
            yield f"{libraries[0]} has no kernel for {isa}."


def _info_faults(archive: zipfile.ZipFile, info: str, project: Project) -> Iterable[str]:
    metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    stated = {"Name": project.name, "Version": project.version}
    for key, value in stated.items():
        if metadata[key] != value:
            yield f"the wheel's {key} is {metadata[key]}, not {value}."
    if _bounds(metadata["Requires-Python"] or "") != _bounds(project.requires_python):
        yield f"the wheel needs Python {metadata['Requires-Python']}."
    needs = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    differing = frozenset(map(distribution_of, needs)) ^ project.dependencies
    yield from (f"the wheel and pyproject.toml differ in {name}." for name in sorted(differing))
    found = entry_points_of(archive.read(f"{info}/entry_points.txt").decode())
    for group in sorted(found.keys() | project.entry_points.keys()):
        ours, theirs = project.entry_points.get(group, {}), found.get(group, {})
        for name in sorted(name for name, _ in ours.items() ^ theirs.items()):
            yield f"entry point {name} of {group} differs from pyproject.toml."
    if not any(name.endswith("/LICENSE") for name in archive.namelist() if info in name):
        yield "the wheel has no LICENSE."


def _bounds(specifier: str) -> frozenset[str]:
    return frozenset(specifier.replace(" ", "").split(","))


def entry_points_of(text: str) -> EntryPoints:
    """Return the groups of an entry_points.txt."""
    reader = configparser.RawConfigParser(delimiters=("=",))
    reader.optionxform = str  # type: ignore[assignment, method-assign]
    reader.read_string(text)
    return {group: dict(reader[group]) for group in reader.sections()}


def sbom_faults(path: Path, project: Project) -> list[str]:
    """Return what is wrong with a CycloneDX list of an environment's packages."""
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    parts = {distribution_of(part["name"]): part for part in document.get("components", ())}
    missing = {project.name, *project.dependencies} - parts.keys()
    faults = [f"the SBOM lacks {name}." for name in sorted(missing)]
    faults += [f"the SBOM names {url} of this machine." for url in re.findall(r"file:[^\"]*", text)]
    if document.get("bomFormat") != "CycloneDX":
        faults.append(f"the SBOM's format is {document.get('bomFormat')}, not CycloneDX.")
    if (version := parts.get(project.name, {}).get("version", project.version)) != project.version:
        faults.append(f"the SBOM has {project.name} {version}, not {project.version}.")
    return faults


def trimmings_of(dockerfile: str) -> list[str]:
    """Return the shell commands with which the image drops files of $SITE, in order."""
    return re.findall(
        r'^ *(?:RUN|&&) ((?:rm|find) .*"\$SITE".*?)(?: \\)?$', dockerfile, re.MULTILINE
    )


def bytes_below(*folders: Path) -> int:
    """Return the sum of the sizes of all files in folders, without links and byte code."""
    found = (file for folder in folders for file in folder.rglob("*") if file.suffix != ".pyc")
    return sum(file.stat().st_size for file in found if file.is_file() and not file.is_symlink())
