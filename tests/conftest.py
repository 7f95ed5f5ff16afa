"""Shared switches of the suite: run it with the built-in plugins absent, share tiny checkpoints."""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from dovetail_testing.plugin import (
    pytest_collection,
    pytest_collection_finish,
    pytest_runtest_teardown,
    pytest_sessionfinish,
)

__all__ = [  # hooks
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
]

# Tiny models on many threads wait for each other; read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# hypothesis would import trio, and look through all objects for what refers to its random numbers.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")


class Absent(importlib.abc.MetaPathFinder):
    """Makes `dovetail_plugins` unimportable, as if plugins/ did not exist."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.split(".")[0] == "dovetail_plugins":
            raise ModuleNotFoundError(f"No module named {name!r} (--without-plugins)", name=name)
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-plugins", action="store_true", help="make dovetail_plugins unimportable"
    )
    parser.addoption("--note-passed", metavar="FILE", help="write the names of tests that passed")
    parser.addoption(
        "--note-alone", metavar="FILE", help="write and print what passes now, having failed before"
    )
    parser.addoption(
        "--processor-time", metavar="FILE", help="write what each test costs, children included"
    )
    parser.addoption(
        "--every", metavar="N", type=int, default=1, help="run each N-th case of tests of few_isa"
    )
    parser.addoption(
        "--skip-noted", metavar="FILE", help="leave out the tests, and whole files, named in a file"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-plugins"):
        sys.meta_path.insert(0, Absent())
    if config.pluginmanager.hasplugin("timeout"):
        from support.time_limits import TimeLimits

        config.pluginmanager.register(TimeLimits())
    noted = config.getoption("--note-passed")
    if noted and not os.environ.get("PYTEST_XDIST_WORKER"):
        config.pluginmanager.register(Noted(Path(noted)))
    processor_time = config.getoption("--processor-time")
    if processor_time:
        from support.processor_time import ProcessorTime

        config.pluginmanager.register(ProcessorTime(Path(processor_time)))
    alone = config.getoption("--note-alone")
    if alone:
        config.pluginmanager.register(Alone(Path(alone)))


ALONE_BEFORE = Path(__file__).with_name("passed_alone.txt")
"""Tests that passed only alone in the run before: one that does so again is a race."""


class Alone:
    """Says which tests pass alone after they failed beside others, and fails for one that did so in
    the run before, whose list the repository has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.names.append(report.nodeid)

    @property
    def again(self) -> list[str]:
        """Return the tests that passed only alone twice."""
        before = ALONE_BEFORE.read_text(encoding="utf-8").split("\n")
        return [name for name in self.names if name in before]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in self.names)
        if self.again:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        for name in self.names:
            print(f"passed only alone: {name}")
        for name in self.again:
            print(f"passed only alone again, so it is a race to mend: {name}")


class Noted:
    """Writes the names of tests that passed, and of files whose tests all passed. What passes
    without the plugins need not run again with them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        self.files: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.files[file] = self.files.get(file, True) and report.passed
        if report.when == "call" and report.passed:
            self.names.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        whole = [file for file, has_passed in self.files.items() if has_passed]
        self.path.write_text("\n".join([*whole, *self.names]), encoding="utf-8")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files whose tests have all passed."""
    file = collection_path.as_posix().removeprefix(f"{config.rootpath}/")
    return True if file in _noted(config) else None


@cache
def _noted(config: pytest.Config) -> frozenset[str]:
    noted = config.getoption("--skip-noted")
    return frozenset(Path(noted).read_text(encoding="utf-8").split("\n")) if noted else frozenset()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each of several workers begin a folder at another place: what one of them has compiled,
    the others read. Tests are sorted in the end."""
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker and isinstance(collector, pytest.Dir) and report.passed:
        parts = report.result
        first = int(worker) * len(parts) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = [*parts[first:], *parts[:first]]
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from support.samples import left_out, left_out_of_every

    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=_turn)
    left = {*left_out(items), *left_out_of_every(config.getoption("--every"), items)}
    left = {item for item in left if item.nodeid not in config.args}  # what is named runs
    left |= {item for item in items if item.nodeid in _noted(config)}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test that ended another worker's process, by hanging say, no second time: xdist would
    give its file to one new worker after another, and each would hang as long."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return (yield)
    shared: Path = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    folder = shared / "running"
    folder.mkdir(exist_ok=True)
    ended = [note.read_text() for note in folder.iterdir() if note.name != worker]
    if item.nodeid in ended:
        item.add_marker(pytest.mark.skip(reason="it ended the process of another worker"))
    running = folder / worker
    running.write_text(item.nodeid)
    result = yield
    running.write_text("")
    return result


LONGEST = ("conformance", "kernels", "e2e", "benchmarks", "contrib", "plugins")
"""Folders in the order in which several workers (--no-loadscope-reorder) take their files: one that
takes a minute must not be the last."""


def _turn(item: pytest.Item) -> tuple[int, tuple[str, ...]]:
    folder = item.nodeid.removeprefix("tests/").partition("/")[0]
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST), item.path.parts


@pytest.fixture(scope="module")
def with_test_models() -> Iterator[None]:
    """Offer ReplayForCausalLM and RandomLogitsForCausalLM, in children of this process as well."""
    from dovetail_testing.models import registered

    with registered():
        yield


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what dovetail remembers of a user, such as its signing key, out of the user's folder."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module", autouse=True)
def module_ends_its_engines() -> Iterator[None]:
    """Fail a module that leaves an engine or another process of dovetail to the next one."""
    from support.orphans import command_of, own_children, survivors

    before = set(own_children())
    yield
    left = survivors(set(own_children()) - before, 2.0)
    names = [" ".join(command_of(child)) for child in left]
    assert not [name for name in names if "dovetail." in name], names


@pytest.fixture(autouse=True)
def registry_is_left_as_found() -> Iterator[None]:
    """Forget plugins that a test added to or hid from this process's registry."""
    from dovetail import registry

    with registry.admin.with_entries({}):
        yield


WARM_FOLDERS = ("conformance", "contrib", "e2e", "plugins")
"""Folders whose tests start servers and engines. Core's run without the plugins."""


@pytest.fixture(scope="module", autouse=True)
def warm_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork what a module starts from a process that has the imports, unless it is marked
    cold_start. What failed beside other tests runs once more as users start it."""
    folder = request.node.nodeid.removeprefix("tests/").partition("/")[0]
    is_cold = request.node.get_closest_marker("cold_start") or request.config.getoption(
        "--note-alone"
    )
    if folder not in WARM_FOLDERS or is_cold:
        yield
        return
    from support.warm_children import warm_children

    with warm_children():
        yield


@pytest.fixture(autouse=True)
def cold_processes(request: pytest.FixtureRequest, warm_processes: None) -> Iterator[None]:
    """Start what a test starts that is marked cold_start as users do."""
    if request.node.get_closest_marker("cold_start") is None:
        yield
        return
    from support.warm_children import cold_children

    with cold_children():
        yield
