"""The release checklist: builds what would be published, tries it, and prints a table of the steps.

    make release-check
    PYTHONPATH=tests python -m support.release_check --root . --out build/release --pythons 3.11

Needs the extra `release`, Linux and a C++ compiler; imports nothing of dovetail. Exits with status
1 if a step failed. The files to publish are in OUT/dist, each command's output is in OUT/logs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import runpy
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from support import release_files as files
from support.release_install import Environment, find_python
from support.release_run import Commands, Failed, Untried

KERNELS = Path("kernels/dovetail_kernels")
OBJECTS = KERNELS / "cpu" / "_lib" / "objects"
DOCKERFILE = Path("examples/deploy/Dockerfile")
BASE_BYTES = 119_200_000
"""python:3.12-slim, all layers on the disk. Source: docker-library/repo-info,
repos/python/local/3.12-slim.md of July 2026."""
IMAGE_BYTES = 1_000_000_000
"""What the container for CPUs may take on the disk."""


class Checklist:
    """The steps, in order; each returns what it found, or raises Failed or Untried."""

    def __init__(self, root: Path, out: Path, pythons: list[str]) -> None:
        self.root, self.out, self.pythons = root, out, pythons
        self.dist, self.project = out / "dist", files.project_of(root)
        self.commands = Commands(out / "logs")
        self.environments: list[Environment] = []
        self.machine = platform.machine()
        self.recipe = runpy.run_path(str(root / KERNELS / "cpu" / "recipe.py"))
        self._sdist: Path | None = None
        self._built: Path | None = None
        self._wheel: Path | None = None

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        """Return the names of all steps, and what does them."""
        return [
            ("metadata", self.metadata),
            ("sdist", self.sdist),
            ("wheel", self.build_wheel),
            ("manylinux", self.manylinux),
            ("twine", self.twine),
            ("contents", self.contents),
            *((f"Python {version}", self.trial_of(version)) for version in self.pythons),
            ("SBOM", self.sbom),
            ("image", self.image),
        ]

    def metadata(self) -> str:
        """Compare the versions, and look for what is not committed."""
        check(files.metadata_faults(self.root))
        shutil.rmtree(self.dist, ignore_errors=True)
        if (self.root / ".git").exists():
            status = self.commands.run("git", "status", "--porcelain", cwd=self.root)
            check([f"{line[3:]} is not committed." for line in status.splitlines()])
        dated = "" if files.is_dated(self.root) else "; the changelog has no date for it yet"
        return f"version {self.project.version}{dated}"

    def sdist(self) -> str:
        """Make the sdist, and look at what it holds."""
        build = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", self.dist)
        self.commands.run(*build, self.root)
        self._sdist = self.dist / f"{self.project.stem}.tar.gz"
        sources = [path for end in ("cpp", "h") for path in (self.root / KERNELS).rglob(f"*.{end}")]
        names = [path.relative_to(self.root).as_posix() for path in sources]
        check(files.sdist_faults(self._sdist, self.project, names))
        return f"{self._sdist.name}, {megabytes(self._sdist)}, {len(names)} sources of kernels"

    def build_wheel(self) -> str:
        """Build the wheel from the sdist without a network; objects of earlier runs are used."""
        source = self._unpacked(needed(self._sdist, "sdist"))
        objects, ours = self.out / "objects", source / OBJECTS
        for folder in filter(Path.is_dir, (self.root / OBJECTS, objects)):
            shutil.copytree(folder, ours, dirs_exist_ok=True)
        before = {path.name for path in ours.glob("*.o")}
        self.commands.run(
            *(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", self.out / "built", source),
        )
        after = {path.name for path in ours.glob("*.o")}
        shutil.copytree(ours, objects, dirs_exist_ok=True)
        (self._built,) = (self.out / "built").glob(f"{self.project.stem}-*.whl")
        return (
            f"{self._built.name}, {megabytes(self._built)}; {len(after - before)} of {len(after)} "
            "objects compiled now"
        )

    def _unpacked(self, sdist: Path) -> Path:
        folder = self.out / "source"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.out / "built", ignore_errors=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        return folder / self.project.stem

    def manylinux(self) -> str:
        """Name the oldest glibc that the wheel runs on."""
        built = needed(self._built, "wheel")
        self.commands.run(sys.executable, "-m", "auditwheel", "show", built)
        repair = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", self.dist)
        self.commands.run(*repair, built)
        (self._wheel,) = self.dist.glob("*.whl")
        (library,) = (built.parent.parent / "source").rglob(Path(files.LIBRARY).name)
        links = self.commands.run("readelf", "--dynamic", library)
        needs = re.findall(r"\(NEEDED\).*\[(.+)\]", links)
        return f"{self._wheel.stem.rpartition('-')[2]}; links {', '.join(needs)}"

    def twine(self) -> str:
        """Check what PyPI would check."""
        needed(self._wheel, "wheel")
        published = sorted(self.dist.iterdir())
        self.commands.run(sys.executable, "-m", "twine", "check", "--strict", *published)
        return ", ".join(path.name for path in published)

    def contents(self) -> str:
        """Look at what the wheel holds."""
        isas = [*self.recipe["all_sets"](self.machine)]
        wheel = needed(self._wheel, "wheel")
        check(files.wheel_faults(wheel, self.project, self.machine, isas))
        count = sum(map(len, self.project.entry_points.values()))
        return f"{megabytes(wheel)}; kernels {' '.join(isas)}; {count} entry points"

    def trial_of(self, version: str) -> Callable[[], str]:
        """Return the step that installs the wheel for a version of Python, and uses it."""

        def trial() -> str:
            wheel = needed(self._wheel, "wheel")
            python = find_python(version)
            if python is None:
                raise Untried(f"this machine has no Python {version}")
            environment = Environment(self.out / f"python{version}", self.commands)
            environment.install(python, wheel)
            found = environment.uses(self.project)
            if self.environments:
                environment.remove()
            else:
                self.environments.append(environment)
            return found

        return trial

    def sbom(self) -> str:
        """Write the packages of a clean environment as CycloneDX."""
        target = self.out / "dist" / "sbom.json"
        environment = self._environment()
        self.commands.run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", environment.python),
            *("--output-format", "JSON", "--output-file", target),
        )
        check(files.sbom_faults(target, self.project))
        parts = json.loads(target.read_text(encoding="utf-8"))["components"]
        return f"{target.name}: {len(parts)} packages"

    def _environment(self) -> Environment:
        if not self.environments:
            raise Untried("no Python has an environment with the wheel")
        return self.environments[0]

    def image(self) -> str:
        """Count what the container for CPUs takes, and whether it answers without what it drops."""
        environment = self._environment()
        if environment.has_cuda():
            raise Untried("pip found only a torch with CUDA here, and the image takes one without")
        full = environment.num_bytes()
        dockerfile = (self.root / DOCKERFILE).read_text(encoding="utf-8")
        env = {**os.environ, "SITE": str(environment.site)}
        for command in files.trimmings_of(dockerfile):
            self.commands.run("sh", "-c", command, env=env)
        environment.asks_server()
        total = environment.num_bytes() + BASE_BYTES
        sizes = (
            f"{total / 1e6:.0f} MB: base {BASE_BYTES / 1e6:.0f}, packages "
            f"{environment.num_bytes() / 1e6:.0f} (before files are dropped {full / 1e6:.0f})"
        )
        check([f"the image takes {sizes}."] if total >= IMAGE_BYTES else [])
        return sizes


def check(faults: list[str]) -> None:
    """Raise Failed if there is a fault."""
    if faults:
        more = f" ({len(faults) - 3} more)" if len(faults) > 3 else ""
        raise Failed(" ".join(faults[:3]) + more)


def needed(path: Path | None, what: str) -> Path:
    """Return the file that an earlier step has made. Raises: Untried if that step failed"""
    if path is None:
        raise Untried(f"the {what} was not built")
    return path


def megabytes(path: Path) -> str:
    """Return a file's size as text."""
    return f"{path.stat().st_size / 1e6:.1f} MB"


def children_s() -> float:
    """Return the processor seconds of all ended children of this process."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_steps(steps: list[tuple[str, Callable[[], str]]]) -> dict[str, str]:
    """Run the steps, print a row for each, and return their results by name."""
    results: dict[str, str] = {}
    print("| step | result | wall s | CPU s | |\n|---|---|---|---|---|", flush=True)
    for name, step in steps:
        start, used = time.perf_counter(), children_s()
        try:
            results[name], text = "passed", step()
        except Untried as error:
            results[name], text = "not tried", str(error)
        except (Failed, OSError, ValueError, subprocess.TimeoutExpired) as error:
            results[name], text = "FAILED", " ".join(str(error).split())
        times = f"{time.perf_counter() - start:.0f} | {children_s() - used:.0f}"
        print(f"| {name} | {results[name]} | {times} | {text} |", flush=True)
    return results


def main(words: list[str] | None = None) -> int:
    """Run the checklist and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout")
    parser.add_argument("--out", type=Path, default=Path("build/release"), help="where files go")
    parser.add_argument("--pythons", nargs="+", default=["3.11", "3.12", "3.13"], metavar="X.Y")
    args = parser.parse_args(words)
    checklist = Checklist(args.root.resolve(), args.out.resolve(), args.pythons)
    results = run_steps(checklist.steps())
    untried = [name for name, result in results.items() if result == "not tried"]
    if untried:
        print(f"Not tried here: {', '.join(untried)}.")
    failed = [name for name, result in results.items() if result == "FAILED"]
    print(f"Failed: {', '.join(failed)}." if failed else f"Files to publish: {args.out}/dist")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
