"""Files that go with messages of `dovetail chat`, and the lines that it keeps on disk."""

from __future__ import annotations

import base64
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.errors import ConfigError
from dovetail.interfaces.data.media_settings import AUDIO, IMAGE, VIDEO
from dovetail.multimodal.parts import media_item
from dovetail_plugins.commands._attachments import attachment_of, content_of
from dovetail_plugins.commands._line_history import history_file, line_editing
from dovetail_plugins.commands.chat import Chat

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Recorder:
    """A server that answers "yes" and keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def stream(self, path: str, body: Any) -> Iterator[Any]:
        self.asked.append(body["messages"])
        yield {"choices": [{"delta": {"content": "yes"}}]}


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    left = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)


@pytest.mark.parametrize(
    ("name", "kind"), [("a.png", IMAGE), ("b.jpeg", IMAGE), ("c.wav", AUDIO), ("d.mp3", AUDIO),
                       ("e.flac", AUDIO), ("f.mp4", VIDEO)]
)  # fmt: skip
def test_a_file_becomes_a_part_that_the_server_reads(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(PIXEL)
    part = attachment_of(str(tmp_path / name), "--file")
    assert media_item(part, "messages.0.content.0").modality == kind
    assert base64.b64encode(PIXEL).decode() in str(part)


def test_text_goes_as_text(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("Grüße\n", encoding="utf-8")
    part = attachment_of(f"'{tmp_path}/notes.md'", "/file")
    assert content_of([part], "Sum up.") == "notes.md:\n\nGrüße\n\n\nSum up."
    assert content_of([], "Hi") == "Hi"
    image = attachment_of("https://example.com/a.png", "/image")
    assert content_of([part, image], "x") == [part, image, {"type": "text", "text": "x"}]


def test_what_cannot_be_sent_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match=r"neither an image, .* nor text"):
        attachment_of(str(tmp_path / "a.bin"), "--file")
    with pytest.raises(ConfigError, match="No such file"):
        attachment_of(str(tmp_path / "nowhere.png"), "--file")
    with pytest.raises(ConfigError, match="Is a directory"):
        attachment_of(str(tmp_path), "--file")


@pytest.mark.parametrize("leave", ["/bye", "/exit", "/quit"])
def test_commands_attach_to_the_next_message_alone(
    leave: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    server = Recorder()
    chat = Chat(server, {"model": "m"}, None)
    place = str(tmp_path / "a.png")
    type_in(monkeypatch, f"/image {place}", "/file nowhere", "one", "two", "/?", leave, "never")
    chat.converse()
    first, second = server.asked
    assert [part["type"] for part in first[0]["content"]] == ["image_url", "text"]
    assert second[:1] == first and second[-1]["content"] == "two"
    shown = capsys.readouterr()
    assert "/bye" in shown.out and "cannot read nowhere" in shown.err


def test_flags_attach_to_the_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    (tmp_path / "b.txt").write_text("text", encoding="utf-8")
    server = Recorder()
    monkeypatch.setattr(
        "dovetail_plugins.commands._client.client_of", lambda args: (server, {"model": "m"})
    )
    words = ["--image", str(tmp_path / "a.png"), "--file", str(tmp_path / "b.txt")]
    assert main(["chat", *words, "-q", "What is it?"]) == 0
    parts = server.asked[0][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text", "text"]
    assert main(["chat", "--file", "nowhere", "-q", "x"]) == 2
    assert "--file" in capsys.readouterr().err


def test_lines_are_kept_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readline = pytest.importorskip("readline")
    file = history_file("chat_history", {"XDG_STATE_HOME": str(tmp_path / "state")})
    assert file == tmp_path / "state/dovetail/chat_history"
    relative = history_file("x", {"XDG_STATE_HOME": "not/absolute"})
    assert relative == Path.home() / ".local/state/dovetail/x"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    readline.clear_history()
    with line_editing(file):
        readline.add_history("the first question")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    readline.clear_history()
    with line_editing(file):
        assert readline.get_history_item(1) == "the first question"
    readline.clear_history()
    with line_editing(None):
        readline.add_history("secret")
    assert "secret" not in file.read_text(encoding="utf-8")


def test_a_history_that_cannot_be_kept_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("readline")
    (tmp_path / "dovetail").write_text("a file", encoding="utf-8")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with line_editing(tmp_path / "dovetail/chat_history"):
        pass
    assert "history" in capsys.readouterr().err
    assert (tmp_path / "dovetail").is_file()
