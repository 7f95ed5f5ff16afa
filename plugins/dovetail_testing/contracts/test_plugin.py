"""Every kind: clauses for all plugins."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from typing import Any

import msgspec
import pytest

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.plugin import Value
from dovetail.registry import Entry
from dovetail.registry.files import import_target
from dovetail.registry.options import as_text, options_for
from dovetail.registry.verify import verify
from dovetail_testing.contract import files_of
from dovetail_testing.isolated_import import import_each
from dovetail_testing.plugin import FRESH, entries_for


@pytest.fixture(scope="session")
def fresh(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Return the result of importing each plugin that a clause asks for in a fresh process."""
    entries = entries_for(FRESH, request)
    return import_each([(entry.kind, entry.target, _packages(entry)) for entry in entries])


def _packages(entry: Entry) -> tuple[str, ...]:
    try:
        plugin = registry.admin.load_target(entry.kind, entry.target)
    except ConfigError:
        return ()
    return plugin.requires if isinstance(plugin, Value) else plugin.info.requires


def selection(entry: Entry) -> Selection:
    """Return the entry as sent to a child process."""
    return Selection(kind=entry.kind, name=entry.name, target=entry.target)


class TestEveryPlugin:
    """Clauses of every kind."""

    kind = "*"

    def test_loads_in_a_fresh_process(self, entry: Entry, fresh: dict[str, Any]) -> None:
        """It loads in a process that has imported nothing else."""
        error = fresh[entry.target]["error"]
        assert error is None, error

    def test_import_leaves_optional_packages_alone(
        self, entry: Entry, plugin: Any, fresh: dict[str, Any]
    ) -> None:
        """Importing it does not import the packages it lists: they are imported when used."""
        imported = ", ".join(fresh[entry.target]["imported"])
        assert not imported, f"importing its module imported {imported} as well"

    def test_keeps_its_interface(self, entry: Entry) -> None:
        """Base class, version, signatures and declarations are in order."""
        verify(entry.kind, import_target(entry.target), entry.target)

    def test_says_what_it_is(self, entry: Entry, plugin: Any) -> None:
        """The class has a docstring, and the summary is a short phrase."""
        summary = plugin.summary if isinstance(plugin, Value) else plugin.info.summary
        assert summary, "its summary is empty"
        assert len(summary) <= 100, f"its summary has {len(summary)} characters, of 100 at most"
        is_told = isinstance(plugin, Value) or bool((plugin.__doc__ or "").strip())
        assert is_told, f"{entry.target} has no docstring: write one sentence that says what it is"

    def test_says_why_it_is_unavailable(self, entry: Entry) -> None:
        """unavailable_reason is None or a text with a fix, and the same on a second call."""
        plugin = import_target(entry.target)
        reason = plugin.unavailable_reason()
        assert reason is None or "Fix: " in reason, (
            f'unavailable_reason() is "{reason}", which names no way out: end it with "Fix: ..."'
        )
        again = plugin.unavailable_reason()
        assert again == reason, f"asked again, unavailable_reason() is {again!r}, not {reason!r}"

    def test_asked_nothing_it_objects_to_nothing(self, plugin: Any) -> None:
        """why_not(None) is empty."""
        if not isinstance(plugin, Value):
            reasons = plugin.why_not(None)
            assert reasons == [], f"why_not(None) is {reasons!r}, and must be []"

    def test_selection_round_trips(self, entry: Entry, plugin: Any) -> None:
        """The selection received by a child process names the same plugin."""
        sent = msgspec.msgpack.encode(selection(entry))
        received = msgspec.msgpack.decode(sent, type=Selection)
        assert registry.admin.load_selection(received) is plugin, f"{received} names another plugin"

    def test_options_explain_themselves(self, plugin: Any) -> None:
        """Every option has a help text."""
        if not isinstance(plugin, Value):
            for field in dataclasses.fields(plugin.Options):
                assert field.metadata.get("help"), f"option {field.name} has no help"

    def test_options_round_trip_through_text(self, plugin: Any) -> None:
        """The defaults, written as text, are read back as the same options."""
        if not isinstance(plugin, Value):
            text = as_text(plugin.Options())
            read = options_for(plugin, text)
            assert read == plugin.Options(), f"the defaults, written as {text}, are read as {read}"

    def test_unknown_options_are_refused_by_name(self, entry: Entry, plugin: Any) -> None:
        """A misspelt option is an error that names it."""
        if not isinstance(plugin, Value):
            with pytest.raises(ConfigError, match="no_such_option"):
                options_for(plugin, {"no_such_option": 1})

    def test_expected_failures_name_clauses(self, entry: Entry, plugin: Any) -> None:
        """Every key of expected_failures is a clause that exists."""
        if isinstance(plugin, Value):
            return
        known = clauses_of(entry.kind) | clauses_of("plugin")
        named = {key.partition("[")[0] for key in plugin.expected_failures}
        unknown = ", ".join(sorted(named - known))
        assert not unknown, f"expected_failures names {unknown}, and there is no such clause"


def clauses_of(kind: str) -> set[str]:
    """Return the clause names of a kind ("plugin": of every kind); none if there is no file."""
    modules = [name for name in files_of(kind) if importlib.util.find_spec(name)]
    return {
        function.removeprefix("test_")
        for name in modules
        for _, cls in inspect.getmembers(importlib.import_module(name), inspect.isclass)
        for function in vars(cls)
        if function.startswith("test_")
    }
