"""From a name to a checked class: finding, ambiguity, statuses, dotted paths, files, auto."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dovetail import registry
from dovetail.errors import (
    AmbiguousPlugin,
    BrokenPlugin,
    ConfigError,
    PluginError,
    UnavailablePlugin,
    UnknownPlugin,
)
from dovetail.interfaces.data.spec import Selection
from dovetail.registry.catalog import Catalog
from dovetail.registry.kinds import Kind
from support import sample_plugins

SAMPLES = Path(sample_plugins.__file__)
KIND = "scheduling_policy"


def at(name: str) -> str:
    """Return the target of a sample plugin."""
    return f"{SAMPLES}:{name}"


@pytest.fixture(autouse=True)
def entries() -> Iterator[None]:
    """Hide everything but a few sample plugins."""
    samples = {"good": at("Good"), "better": at("Better"), "gone": at("Unavailable")}
    broken = {"no_module": "no_such_module:Thing", "not_there": at("NotThere")}
    sizes = {"16": at("SIXTEEN"), "8": at("MISSING_VALUE")}
    with registry.admin.with_entries({KIND: samples | broken, "block_size": sizes}, only=True):
        yield


def test_names_are_sorted_and_imports_nothing() -> None:
    assert registry.names(KIND) == ["better", "gone", "good", "no_module", "not_there"]
    assert registry.names("block_size") == ["8", "16"]


def test_find_and_load() -> None:
    entry = registry.find(KIND, "good")
    assert (entry.id, entry.target) == ("good@test", at("Good"))
    assert registry.load(KIND, "good").__name__ == "Good"
    assert registry.load(KIND, "good@test") is registry.load(KIND, "good")
    assert registry.load("block_size", "16").value == 16


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UnknownPlugin) as raised:
        registry.find(KIND, "goood")
    text = str(raised.value)
    assert text.startswith('--scheduling-policy: there is no scheduling_policy "goood".')
    assert "nearest: good" in text
    assert "better" in text


def test_where_replaces_the_flag() -> None:
    with pytest.raises(UnknownPlugin, match=r"^policy of request 7: "):
        registry.find(KIND, "goood", where="policy of request 7")


@pytest.mark.parametrize("spec", ["shortest.py", "shortest:py", "./my/shortest.py"])
def test_a_file_without_its_class_is_told_how_to_name_it(spec: str) -> None:
    with pytest.raises(UnknownPlugin) as error:
        registry.find("scheduling_policy", spec, where="--scheduling-policy")
    file = spec.replace(":py", ".py")
    assert f"a class of a file is written {file}:Class" in str(error.value.fix)
    assert error.value.where == "--scheduling-policy"


def test_a_dotted_class_without_colon_is_explained() -> None:
    with pytest.raises(UnknownPlugin, match=r"a class is written package\.module:Class"):
        registry.find(KIND, "package.module.Class")


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="scheduling_policy"):
        registry.entries("scheduling_polic")


def test_two_distributions_offering_one_name() -> None:
    with registry.admin.with_entries({KIND: {"good@other": at("Better")}}):
        with pytest.raises(AmbiguousPlugin, match="offered by other and test") as raised:
            registry.load(KIND, "good")
        assert "good@other or good@test" in str(raised.value)
        assert registry.load(KIND, "good@other").__name__ == "Better"
        assert registry.names(KIND).count("good") == 1
    assert registry.load(KIND, "good").__name__ == "Good"


def test_wrong_distribution_is_unknown() -> None:
    with pytest.raises(UnknownPlugin, match="good@elsewhere"):
        registry.find(KIND, "good@elsewhere")


def test_unavailable_says_what_to_install() -> None:
    with pytest.raises(UnavailablePlugin) as raised:
        registry.load(KIND, "gone")
    text = str(raised.value)
    assert text.startswith("--scheduling-policy gone: registered by test but unavailable")
    assert text.endswith('Fix: run `pip install "dovetail-llm[gpu]"`.')
    with pytest.raises(UnavailablePlugin, match="no_such_package"):
        registry.load("block_size", "8")


def test_a_deferred_choice_is_asked_what_is_missing_where_it_is_loaded() -> None:
    deferred = registry.admin.defer(KIND, "gone")
    with pytest.raises(UnavailablePlugin) as raised:
        registry.admin.require_selection(deferred)
    text = str(raised.value)
    assert text.startswith("--scheduling-policy gone: unavailable: ")
    assert text.endswith('Fix: run `pip install "dovetail-llm[gpu]"`.')


@pytest.mark.parametrize(
    ("name", "reason"), [("no_module", "no_such_module"), ("not_there", "NotThere")]
)
def test_broken_is_raised_only_when_selected(name: str, reason: str) -> None:
    assert name in registry.names(KIND)
    assert registry.choose(KIND, "good").name == "good"
    with pytest.raises(BrokenPlugin, match=reason):
        registry.load(KIND, name)


def test_status_of_each() -> None:
    words = {entry.name: registry.status(entry).word for entry in registry.entries(KIND)}
    assert words == {
        "good": "ok",
        "better": "ok",
        "gone": "unavailable",
        "no_module": "broken",
        "not_there": "broken",
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NotAPlugin", "does not derive from"),
        ("Abstract", "does not implement key"),
        ("OldVersion", "version 0"),
        ("WrongName", "lacks the parameter request"),
        ("Greedy", r"takes \*args"),
        ("ExtraParameter", "demands factor"),
        ("HiddenArguments", r"tune\(\) takes \*\*settings"),
        ("NoInfo", "no info"),
        ("ThawedOptions", "not frozen"),
        ("NeedyOptions", "weight has no default"),
        ("UnknownWord", "flies"),
        ("SIXTEEN", "not a class"),
        ("Raises", "no driver"),
    ],
)
def test_verification_says_what_is_wrong(name: str, reason: str) -> None:
    with pytest.raises(BrokenPlugin, match=reason):
        registry.load(KIND, at(name))


def test_keyword_parameters_are_compared_too() -> None:
    with pytest.raises(BrokenPlugin, match="lacks the parameter add_special_tokens"):
        registry.load("tokenizer", at("ReorderedTokenizer"))


def test_a_class_is_no_value() -> None:
    with pytest.raises(BrokenPlugin, match="not an instance"):
        registry.load("block_size", at("Good"))


def test_dotted_path_and_file_path(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = registry.choose(KIND, "support.sample_plugins:Good")
    assert by_name.target == "support.sample_plugins:Good"
    assert registry.admin.load_selection(by_name).__name__ == "Good"
    monkeypatch.chdir(SAMPLES.parent)
    by_file = registry.choose(KIND, "sample_plugins.py:Good")
    assert by_file.target == at("Good")
    assert registry.admin.load_selection(by_file) is registry.load(KIND, "good")


def test_file_path_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        registry.load(KIND, f"{tmp_path}/none.py:Good")
    (tmp_path / "bad.py").write_text("raise ValueError('on import')")
    with pytest.raises(BrokenPlugin, match="on import"):
        registry.load(KIND, f"{tmp_path}/bad.py:Good")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(BrokenPlugin, match="SystemExit"):
        registry.load(KIND, f"{tmp_path}/leaves.py:Good")


def test_file_with_register(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dovetail.registry import register\n"
        "from dovetail.interfaces.plugin import Info\n"
        "from dovetail.interfaces.scheduling_policy import SchedulingPolicy\n"
        f"@register('{KIND}', 'mine')\n"
        "class Mine(SchedulingPolicy):\n"
        "    'A policy.'\n"
        "    info = Info(summary='mine')\n"
        "    def key(self, request):\n"
        "        return (0.0,)\n"
    )
    made = registry.admin.load_file(file)
    assert [entry.id for entry in made] == ["mine@mine.py"]
    assert registry.admin.load_file(str(file)) == made
    assert [entry.name for entry in registry.entries(KIND)].count("mine") == 1
    chosen = registry.choose(KIND, "mine")
    assert registry.admin.load_selection(chosen).__name__ == "Mine"


def test_a_given_file_replaces_an_installed_plugin_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        f"from dovetail.registry import register\n@register('{KIND}', 'good')\nclass Own: pass\n"
    )
    with registry.admin.with_entries({}):
        registry.admin.load_file(file)
        assert registry.find(KIND, "good").id == "good@own.py"
        assert registry.find(KIND, "good@test").id == "good@test"
    assert registry.find(KIND, "good").id == "good@test"


def test_with_entries_forgets_files_and_blocks(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        f"from dovetail.registry import register\n@register('{KIND}', 'late')\nclass Late: pass\n"
    )
    with registry.admin.with_entries({}):
        registry.admin.load_file(tmp_path / "late.py")
        registry.admin.block(["good"])
        assert "late" in registry.names(KIND)
        assert "good" not in registry.names(KIND)
    assert "late" not in registry.names(KIND)
    assert "good" in registry.names(KIND)


def test_file_that_registers_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match="registers no plugin"):
        registry.admin.load_file(tmp_path / "empty.py")


@pytest.mark.parametrize("is_verbose", [False, True])
def test_auto_takes_the_highest_rank_and_logs_one_line(
    is_verbose: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_auto(monkeypatch)
    monkeypatch.setenv("DOVETAIL_VERBOSE", str(int(is_verbose)))
    with (
        registry.admin.with_entries({KIND: {"picky": at("Picky")}}),
        caplog.at_level(logging.INFO, "dovetail.registry"),
    ):
        assert registry.choose(KIND, "auto", query="plain").name == "better"
        assert registry.choose(KIND, "auto", query="picky").name == "picky"
    chosen = [line for line in caplog.messages if "auto: not" not in line]
    assert len(chosen) == 2
    assert chosen[0].startswith("scheduling_policy auto: better, of ")
    assert chosen[0].endswith(" (--verbose tells why)")
    assert max(map(len, chosen)) < 80
    told = "\n".join(line for line in caplog.messages if line not in chosen)
    for reason in ("no_such_package", "does not like plain", "good: fits, but ranks 0"):
        assert (reason in told) == is_verbose


def test_auto_with_nothing_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_auto(monkeypatch)
    with (
        registry.admin.with_entries({KIND: {"picky": at("Picky")}}, only=True),
        pytest.raises(PluginError, match="does not like plain"),
    ):
        registry.choose(KIND, "auto", query="plain")


def test_auto_is_a_name_where_one_is_registered() -> None:
    with registry.admin.with_entries({KIND: {"auto": at("Good")}}):
        assert registry.choose(KIND, "auto").target == at("Good")


def test_explicit_choice_that_does_not_fit() -> None:
    with (
        registry.admin.with_entries({KIND: {"picky": at("Picky")}}),
        pytest.raises(PluginError, match="does not fit: does not like plain"),
    ):
        registry.choose(KIND, "picky", query="plain")


def test_default_choice() -> None:
    with registry.admin.with_entries({KIND: {"fcfs": at("Good")}}):
        assert registry.choose(KIND).name == "fcfs"
    with pytest.raises(PluginError, match="no tool_parser was named"):
        registry.choose("tool_parser")


def test_selection_crosses_processes() -> None:
    chosen = registry.choose(KIND, "good", options={"weight": "2.5", "names": '["a", "b"]'})
    assert chosen.options == {"weight": 2.5, "names": ["a", "b"]}
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(chosen), type=Selection)
    built = registry.admin.build_options(received)
    assert (built.weight, built.names, built.mode) == (2.5, ("a", "b"), "up")


def test_deferred_choice_imports_nothing() -> None:
    deferred = registry.admin.defer(KIND, "no_module")
    assert deferred.target == "no_such_module:Thing"
    with pytest.raises(BrokenPlugin):
        registry.admin.load_selection(deferred)
    with pytest.raises(UnknownPlugin):
        registry.admin.defer(KIND, "nothing")


def test_blocked_plugins_are_hidden() -> None:
    fresh = Catalog()
    with fresh.with_entries(
        {KIND: {"a": at("Good"), "b@x": at("Good"), "c@y": at("Good")}}, only=True
    ):
        fresh.block(["a", "y"])
        assert fresh.names(KIND) == ["b"]
        assert fresh.block([f"{KIND}:b", "nobody"]) == ["nobody"]
        assert fresh.block(["nobody"]) == []  # told once
        assert fresh.names(KIND) == []


def test_values() -> None:
    assert registry.admin.value_of("block_size", "16") == 16
    with pytest.raises(ConfigError, match="has no options"):
        registry.choose("block_size", "16", options={"x": 1})


def test_describe_is_plain_data() -> None:
    facts = {kind["kind"]: kind for kind in registry.admin.describe()}
    msgspec.json.encode(list(facts.values()))
    assert set(facts) == set(registry.KINDS)
    shown = {entry["name"]: entry for entry in facts[KIND]["entries"]}
    assert shown["good"]["summary"] == "shortest first"
    assert shown["good"]["options"][0]["help"] == "weight"
    assert shown["gone"]["status"] == "unavailable"
    assert "no_such_module" in shown["no_module"]["reason"]


def test_the_table_of_kinds() -> None:
    chosen_otherwise = {"client", "command", "model", "model_store", "stop_condition"}
    tables = {"file_importer", "foreign_flags", "foreign_variables", "model_type"}
    tables |= {"command_line", "request_fields"}
    for kind in registry.KINDS.values():
        assert kind.group == f"dovetail.{kind.name}"
        assert kind.summary
        assert kind.name in chosen_otherwise | tables or kind.flags


def allow_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the kind of the tests an auto rule."""
    table = registry.KINDS[KIND]
    changed = {name: getattr(table, name) for name in Kind.__dataclass_fields__}
    monkeypatch.setitem(registry.KINDS, KIND, Kind(**(changed | {"auto": "by rank"})))


def test_what_plugins_and_most_callers_see_is_small() -> None:
    """Six verbs, what they return, and the decorator; the rest is admin's."""
    verbs = {"names", "find", "load", "choose", "make", "status"}
    others = {"register", "entries", "Entry", "Kind", "KINDS", "Status", "admin"}
    assert set(registry.__all__) == verbs | others
    assert all(verb.__doc__ for verb in (getattr(registry, name) for name in verbs))
