"""Keys files: YAML and JSON lines, added keys, what is wrong with one, and changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from dovetail.cli.main import main
from dovetail.errors import ConfigError
from dovetail_plugins.gates import _keys_file
from dovetail_plugins.gates._keys_file import KeysFile, hash_of, read_keys


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the file at every request."""
    monkeypatch.setattr(_keys_file, "LOOK_PERIOD_S", 0.0)


def added(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the key that `dovetail keys add` prints."""
    assert main(["keys", "add", *words]) == 0
    return capsys.readouterr().out.strip()


def test_a_key_is_printed_once_and_stored_as_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.yaml"
    key = added(capsys, "ann", "--file", str(file), "--weight", "2", "--requests", "3")
    assert key not in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    (row,) = yaml.safe_load(file.read_text())
    assert row == {
        "name": "ann", "hash": hash_of(key), "weight": 2.0, "limits": {"requests": 3},
    }  # fmt: skip
    other = added(capsys, "bob", "--file", str(file), "--models", "qwen*", "--families", "chat")
    keys = KeysFile(str(file))
    assert keys.by_hash(hash_of(key)).name == "ann"  # type: ignore[union-attr]
    assert keys.by_hash(hash_of(other)).models == ("qwen*",)  # type: ignore[union-attr]
    assert keys.by_hash(hash_of("sk-guess")) is None
    assert main(["keys", "add", "ann", "--file", str(file)]) == 2
    assert "there is a key ann already" in capsys.readouterr().err
    assert main(["keys", "ls", "--file", str(file)]) == 0
    told = capsys.readouterr().out
    assert "requests=3" in told and "qwen*" in told and "sha256" not in told


def test_what_else_is_in_the_file_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("# ours\n- name: ann  # the first\n")
    file.chmod(0o640)
    added(capsys, "bob", "--file", str(file))
    assert file.read_text().startswith("# ours\n- name: ann  # the first\n- name: bob\n")
    assert file.stat().st_mode & 0o777 == 0o640


def test_json_lines_stay_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text('{"name": "ann"}')
    key = added(capsys, "bob", "--file", str(file), "--admin")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["ann", "bob"]
    assert rows[1] == {"name": "bob", "hash": hash_of(key), "admin": True}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- name: 'a b'", "'a b' is not a name"),
        ("- {name: a, hash: 'sha256:12'}", "is not a hash"),
        ("- {name: a}\n- {name: a}", "two keys have the name a"),
        (f"- {{name: a, hash: '{hash_of('k')}'}}\n- {{name: b, hash: '{hash_of('k')}'}}",
         "two keys have the hash"),
        ("- {name: a, weight: 0}", "weight 0.0 is not above 0"),
        ("- {name: a, weight: .nan}", "weight nan is not above 0"),
        ("- {name: a, limits: {requests: 0}}", "requests is 0"),
        ("- {name: a, limits: {request: 1}}", "request"),
        ("- {name: a, model_limits: {m: {queued: -1}}}", "queued is -1"),
        ("- {name: a, modles: [b]}", "modles"),
        ("- {nmae: a}", "nmae"),
        ("name: a", "not a list"),
        ("- [", "not YAML"),
        ('{"name": "a"}\n{"name"', "line 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"keys\.yaml") as raised:
        read_keys(file)
    assert fault in str(raised.value)


def test_no_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dovetail keys add"):
        KeysFile(str(tmp_path / "none"))


def test_changes_are_read_and_bad_ones_leave_the_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("- name: ann\n")
    keys = KeysFile(str(file))
    for number, (text, names) in enumerate(
        [("- name: bob\n", ["bob"]), ("- nam: eve\n", ["bob"]), ("- name: eve\n", ["eve"])], 1
    ):
        file.write_text(text)
        os.utime(file, ns=(number, number))
        found = [name for name in ("ann", "bob", "eve") if keys.by_name(name)]
        assert found == names
    assert "the keys stay as they were" in caplog.text
    file.unlink()
    assert keys.by_name("eve") is not None
