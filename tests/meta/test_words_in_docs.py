"""What pages written by hand name is there: flags, metrics, routes, plugins, names, paths."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.cli.main import KIND, load_command, part_of
from dovetail.cli.parser import Parser
from dovetail.moved import new_name
from dovetail_plugins.gateway.manage.routes import MANAGEMENT

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/how_to/*.md"),
        *ROOT.glob("docs/tutorials/*.md"),
        *ROOT.glob("docs/explanation/*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("contrib/*/README.md"),
    ]
)
FOLDERS = "core|plugins|kernels|contrib|tests|docs|examples|benchmarks"
OTHERS = {
    "--address", "--apikey", "--baseurl", "--build", "--build-arg", "--from-literal", "--gpus",
    "--head", "--health-cmd", "--ipc", "--master-addr", "--master-port", "--modelid", "--nnodes",
    "--no-deps", "--no-healthcheck", "--node-rank", "--now", "--nproc-per-node", "--num-cpus",
    "--rdzv-endpoint", "--rm", "--shm-size", "--standalone", "--target", "--temp-dir",
    "--unix-socket", "--zen",
}  # fmt: skip
"""Flags of other programs: cline, docker, torchrun, ray, kubectl, systemctl, curl, pip."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8").replace("\\\n", " ")


def quoted(text: str) -> list[str]:
    """Return what stands in backticks or in blocks of code."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.S | re.M)
    return [*blocks, *re.findall(r"`([^`]+)`", rest)]


@cache
def flags() -> frozenset[str]:
    """Return the flags of all commands, and of vLLM's that are known."""
    commands = [load_command(name) for name in registry.names(KIND)]
    commands += [part_of(one, part) for one in commands for part in one.parts]
    found = {"--help", "--verbose", "--config", "--version", "--plugin-options"}
    for command in commands:
        parser = Parser(prog="dovetail", description="")
        command.add_arguments(parser)
        for action in parser._actions:
            found.update(action.option_strings)
        for flag in parser.flags():
            found.update(flag.spellings)
    reference = (ROOT / "docs/reference/from_vllm.md").read_text()
    found.update(re.findall(r"(?<![\w-])--[a-z][\w-]*", reference))
    for folder in ("benchmarks", "docs", "examples", "kernels", "tests"):
        for script in ROOT.glob(f"{folder}/**/*.py"):
            if script != Path(__file__):
                found.update(re.findall(r'"(--[a-z][a-z0-9-]*)"', script.read_text()))
    return frozenset(found)


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_flags_exist(page: Path) -> None:
    words = {
        word.replace("_", "-")
        for code in quoted(text_of(page))
        for word in re.findall(r"(?<![\w-])(--[a-z][a-z0-9_-]*[a-z0-9])", code)
    }
    unknown = {
        word
        for word in words - OTHERS
        if not {word, word.replace("--no-", "--", 1), "--no-" + word[2:]} & flags()
    }
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_metrics_exist(page: Path) -> None:
    known = set(
        re.findall(r"`((?:dovetail|vllm):\w+)`", (ROOT / "docs/reference/metrics.md").read_text())
    )
    assert len(known) > 100
    for word in re.findall(r"(?<![:\w-])((?:dovetail|vllm):[a-z]+_\w+)", text_of(page)):
        plain = re.sub(r"_(?:total|bucket|sum|count)$", "", word)
        is_start = word.endswith("_") and any(one.startswith(word) for one in known)
        assert {word, plain} & known or is_start, f"there is no metric {word}"


def routes() -> set[str]:
    found = set()
    for name in ("http.md", "from_ollama.md", "batch.md"):
        text = (ROOT / "docs/reference" / name).read_text()
        found |= set(re.findall(r"(?<=[`\s])(/[\w{}./:-]*)", text))
    found |= {path for path, *_ in MANAGEMENT}
    return {re.sub(r"\{[^}]*\}", "*", route) for route in found}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_routes_exist(page: Path) -> None:
    known = routes()
    for code in quoted(text_of(page)):
        if "/v1/summarize" in code:
            continue  # what a tutorial builds
        for route in re.findall(r"\b(?:GET|POST|DELETE|PUT) (/[\w{}./-]*)", code):
            shape = re.sub(r"\{[^}]*\}|\b[A-Z][A-Z_]+\b", "*", route).rstrip("/.") or "/"
            assert shape in known or route in known, f"there is no route {route}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_python_names_exist(page: Path) -> None:
    for code in quoted(text_of(page)):
        for name in re.findall(
            r"(?<![\w./@-])(dovetail(?:_plugins|_kernels)?(?:\.[A-Za-z_]\w*)+)", code
        ):
            if name.split(".")[1] in GROUPS or name.endswith((".md", ".py", ".service", ".yaml")):
                continue
            assert exists(name), f"there is no {name}"


GROUPS = {*registry.KINDS, "hooks", "guided_decoding_backend", "device", "spec_acceptance_method"}


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or can be had from one, or could."""
    if new_name(name) is not None:
        return True
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for part in parts[at:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_paths_exist(page: Path) -> None:
    for code in quoted(text_of(page)):
        for path in re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./-]*\w)", code):
            made = "NAME" in path
            assert made or (ROOT / path).exists(), f"there is no {path}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_targets_of_make_exist(page: Path) -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for code in quoted(text_of(page)):
        for target in re.findall(r"^\s*make ([a-z-]+)", code, re.M):
            assert target in known, f"there is no `make {target}`"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_variables_exist(page: Path) -> None:
    page_of_all = (ROOT / "docs/reference/variables.md").read_text()
    known = all_words() | set(re.findall(r"\b(?:DOVETAIL|VLLM)_\w+", page_of_all))
    known |= {"DOVETAIL_" + flag[2:].upper().replace("-", "_") for flag in flags()}
    known |= {"DOVETAIL_MODEL"}  # the positional argument
    for name in set(re.findall(r"\b((?:DOVETAIL|VLLM)_[A-Z][A-Z_0-9]*[A-Z0-9])\b", text_of(page))):
        assert name in known, f"nothing reads {name}"


@cache
def all_words() -> frozenset[str]:
    found: set[str] = set()
    for folder in ("core", "plugins", "kernels"):
        for file in ROOT.glob(f"{folder}/**/*.py"):
            found.update(re.findall(r"\b(?:DOVETAIL|VLLM)_[A-Z_0-9]+\b", file.read_text()))
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_plugins_that_are_chosen_exist(page: Path) -> None:
    """A value of a flag that names a plugin is one, a path, a word in capitals or the page's."""
    by_flag = {flag: kind for kind in registry.KINDS.values() for flag in kind.flags}
    text = text_of(page)
    made = set(re.findall(r"^(\w+) = \"", text, re.M)) | {"shortest_prompt", "my_model"}
    for code in quoted(text):
        for flag, value in re.findall(
            r"(?<!bench )(--[a-z-]{7,})[ =]([\w.@-]+)(?=[\s`),;]|$)", code
        ):
            kind = by_flag.get(flag)
            if kind is None or kind.is_open or value[0] in "-." or value.isupper():
                continue
            names = {*registry.names(kind.name), "auto", "none", kind.default}
            assert value.split("@")[0] in names | made or value.isdigit() or "." in value, (
                f"{flag} {value}: there is no such {kind.name}"
            )
