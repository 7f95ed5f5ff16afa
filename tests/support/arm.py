"""Runs Python as on 64-bit Arm, with this tree's packages and kernels compiled for Arm.

    python tests/support/arm.py -m dovetail_kernels test --device cpu --implementation native
    QEMU_CPU=neoverse-n1 python tests/support/arm.py -c "import platform; print(platform.machine())"

qemu emulates the processor; Python comes from Debian, other packages from PyPI. They are installed
once, in a folder of 1.5 GB in the cache. Needs Debian 12, as root only for what it asks to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from dovetail_kernels.cpu import recipe

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "arm"
EMULATOR, COMPILER = "qemu-aarch64-static", "aarch64-linux-gnu-g++"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARIES = [
    *("libc6", "libstdc++6", "libgcc-s1", "libgomp1", "zlib1g", "libexpat1", "libssl3"),
    *("libbz2-1.0", "liblzma5", "libffi8", "libsqlite3-0", "libuuid1", "libncursesw6"),
    *("libtinfo6", "libreadline8", "libdb5.3", "libcrypt1"),
]
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
TORCH = "torch==2.10.0"
"""The last one whose wheel for Arm does not ask for CUDA's libraries."""
TORCH_NEEDS = ("filelock", "typing-extensions", "sympy", "networkx", "fsspec")
"""pip would decide by this machine's processor what torch needs."""
FEATURES = "max"
"""The processor that QEMU_CPU may replace."""


def missing() -> str | None:
    """Return what has to be installed, as commands; None if all is there."""
    packages = {EMULATOR: "qemu-user-static", COMPILER: "g++-aarch64-linux-gnu"}
    absent = [package for word, package in packages.items() if shutil.which(word) is None]
    if absent:
        return f"apt-get install {' '.join(absent)}"
    known = subprocess.run(
        ["dpkg", "--print-foreign-architectures"], capture_output=True, text=True, check=True
    )
    if "arm64" not in known.stdout.split():
        return "dpkg --add-architecture arm64 && apt-get update"
    return None


def install(folder: Path) -> None:
    """Install Python and the packages that dovetail needs, unless they are there."""
    done = folder / "done"
    if done.is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    debs = folder / "debs"
    debs.mkdir(parents=True)
    own = [f"{name}{VERSION}-{part}" for name, part in
           (("python", "minimal"), ("libpython", "minimal"), ("libpython", "stdlib"))]  # fmt: skip
    names = [f"{name}:arm64" for name in (*own, *LIBRARIES)]
    subprocess.run(["apt-get", "download", "--quiet", *names], cwd=debs, check=True)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(folder / "root")], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [one for one in project["dependencies"] if not one.startswith("torch")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    command += [f"--platform={platform}" for platform in PLATFORMS]
    command += [f"--python-version={VERSION}", "--target", str(folder / "site")]
    subprocess.run([*command, "--no-deps", TORCH], check=True)
    subprocess.run([*command, *TORCH_NEEDS, *needed], check=True)
    shutil.rmtree(debs)
    done.touch()


def copy_kernels(folder: Path) -> None:
    """Copy the kernels and compile them. What is compiled already stays."""
    own, fresh = folder / "kernels", folder / "fresh"
    compiled = Path("dovetail_kernels", "cpu", "_lib")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(ROOT / "kernels", fresh, ignore=shutil.ignore_patterns("_lib", "__pycache__"))
    if (own / compiled).is_dir():
        (own / compiled).replace(fresh / compiled)
    shutil.rmtree(own, ignore_errors=True)
    fresh.replace(own)
    recipe.build(own / compiled, command=COMPILER, machine="aarch64", tell=print)


def command_of(folder: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs Python with these arguments."""
    sources = [str(ROOT / name) for name in ("core", "plugins", "tests")]
    variables = {
        "PYTHONHOME": str(folder / "root" / "usr"),
        "PYTHONPATH": os.pathsep.join([*sources, str(folder / "kernels"), str(folder / "site")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    set_variables = [
        word for name, value in variables.items() for word in ("-E", f"{name}={value}")
    ]
    python = folder / "root" / "usr" / "bin" / f"python{VERSION}"
    processor = os.environ.get("QEMU_CPU", FEATURES)
    command = [EMULATOR, "-cpu", processor, "-L", str(folder / "root"), *set_variables]
    return [*command, str(python), *arguments]


def main(arguments: Sequence[str]) -> int:
    """Run Python; return its exit status."""
    if not arguments:
        print(__doc__)
        return 2
    if (command := missing()) is not None:
        print(f"This needs more packages: {command}", file=sys.stderr)
        return 1
    install(FOLDER)
    copy_kernels(FOLDER)
    return subprocess.run(command_of(FOLDER, arguments), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
