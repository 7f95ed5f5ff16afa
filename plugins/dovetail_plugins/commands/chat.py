"""`dovetail chat`: a conversation with a running server in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import Any

from dovetail.errors import DovetailError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._attachments import attachment_of, content_of

PROMPT, MORE = "> ", "... "
QUOTES = '"""'
COMMANDS_HELP = """/clear         forget the conversation, not the system message
/system TEXT   begin anew with this system message; without TEXT with none
/file PATH     send a file with the next message: an image, a sound, a video or text
/image PATH    the same; an address is sent as an image
/bye, /exit    leave, as Ctrl-D does
/help, /?      show this
\"\"\"            begins and ends a message of several lines"""
LEAVING = ("/bye", "/exit", "/quit")
ATTACHING = ("/file", "/image", "/audio", "/read")
"""The commands that attach a file; the others are names that other programs use."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class ChatCommand(Command):
    """`dovetail chat`."""

    info = Info(summary="chat with a running server")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of chat. Mutates: parser."""
        from dovetail_plugins.commands._client import add_server_arguments

        add_server_arguments(parser)
        add_talk_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Chat until the end of input; return the exit status. Raises: ServerError."""
        from dovetail_plugins.commands._client import client_of

        client, fields = client_of(args)
        return talk(Chat(client, fields, args.system_prompt), args)


def add_talk_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options shared with `dovetail run`. Mutates: parser."""
    from dovetail_plugins.commands._client import add_answer_arguments

    add_answer_arguments(parser, quick="MESSAGE", text="ask once, print the answer, leave")
    parser.add_argument("--system-prompt", metavar="TEXT", help="system message to begin with")
    parser.add_argument(
        *("--image", "--file"),
        dest="attached",
        action="append",
        default=[],
        metavar="PATH",
        help="send a file with the first message: an image, a sound, a video or text; an address "
        "is sent as an image; may be repeated",
    )
    parser.add_argument(
        "--no-history", action="store_true", help="keep none of the written lines on disk"
    )


def talk(chat: Chat, args: argparse.Namespace) -> int:
    """Ask once, or have a conversation; return the exit status. Raises: ConfigError,
    ServerError."""
    from dovetail_plugins.commands._line_history import history_file, line_editing

    for place in args.attached:
        chat.attach(place, where="--file")
    if args.quick is not None:
        chat.ask(args.quick)
        return 0
    print(f"Chatting with {chat.model}. Ctrl-C stops an answer, Ctrl-D leaves, /help tells more.")
    with line_editing(None if args.no_history else history_file("chat_history")):
        chat.converse()
    return 0


class Chat:
    """One conversation. `history` has the messages so far, `attached` the parts for the next
    one."""

    def __init__(self, client: Any, fields: dict[str, Any], system_prompt: str | None) -> None:
        self.model = str(fields["model"])
        self.history: list[dict[str, Any]] = []
        self.attached: list[dict[str, Any]] = []
        self._client = client
        self._fields = fields
        self._begin(system_prompt)

    def _begin(self, system_prompt: str | None) -> None:
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self.history = list(self._system)

    def converse(self) -> None:
        """Read and answer messages in a loop; an error ends only one answer. Mutates: self"""
        while (message := read_message()) is not None:
            command, _, text = message.strip().partition(" ")
            if command in LEAVING:
                return
            if command in self._commands():
                self._commands()[command](text.strip())
            elif command.startswith("/") and command[1:].isalpha():
                print(f"there is no command {command}; /help lists them.")
            elif command:
                self._try(message)

    def _commands(self) -> dict[str, Callable[[str], None]]:
        return {
            "/clear": self._clear,
            "/system": self._set_system,
            **dict.fromkeys(ATTACHING, self._attach),
            **dict.fromkeys(("/help", "/?"), self._show_help),
        }

    def attach(self, place: str, *, where: str) -> None:
        """Send a file with the next message. Mutates: self. Raises: ConfigError"""
        self.attached.append(attachment_of(place, where))

    def _attach(self, text: str) -> None:
        try:
            self.attach(text, where="/file")
        except DovetailError as error:
            print(f"error: {error}", file=sys.stderr)
        else:
            print("It goes with the next message.")

    def _clear(self, text: str) -> None:
        self.history, self.attached = list(self._system), []
        print("The conversation is forgotten.")

    def _set_system(self, text: str) -> None:
        self._begin(text)
        print("A new conversation." if text else "A new conversation without a system message.")

    def _show_help(self, text: str) -> None:
        print(COMMANDS_HELP)

    def _try(self, message: str) -> None:
        try:
            self.ask(message)
        except DovetailError as error:
            sys.stdout.flush()
            print(f"error: {error}", file=sys.stderr)

    def ask(self, message: str) -> str:
        """Print the streamed answer and return it. Mutates: attached, history (if there is one)"""
        content, self.attached = content_of(self.attached, message), []
        messages = [*self.history, {"role": "user", "content": content}]
        parts: list[str] = []
        screen = Screen()
        body = {**self._fields, "messages": messages}
        with contextlib.closing(self._client.stream("/chat/completions", body)) as chunks:
            try:
                for chunk in chunks:
                    parts.append(screen.show(chunk))
            except KeyboardInterrupt:
                screen.stop()
        screen.end()
        text = "".join(parts)
        self.history = [*messages, {"role": "assistant", "content": text}]
        return text


class Screen:
    """Prints an answer as it arrives: reasoning dimmed and separated, tool calls unchanged."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_reasoning = False

    def show(self, chunk: dict[str, Any]) -> str:
        """Print the contents of a chunk and return its content text."""
        choices = chunk.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if reasoning:
            self._is_reasoning = True
            write(f"{_DIM}{reasoning}{_PLAIN}" if self._is_terminal else reasoning)
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            self._say((function.get("name") or "") + (function.get("arguments") or ""))
        content = delta.get("content") or ""
        self._say(content)
        return str(content)

    def _say(self, text: str) -> None:
        if text and self._is_reasoning:
            self._is_reasoning = False
            write("\n\n")
        write(text)

    def stop(self) -> None:
        """Show that the answer was stopped."""
        write(" [stopped]")

    def end(self) -> None:
        """End the answer's line."""
        write("\n")


def read_message() -> str | None:
    """Return the next message, with several lines if triple-quoted; None at the end of input."""
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input(PROMPT if is_terminal else "")
            if not line.lstrip().startswith(QUOTES):
                return line
            return _read_quoted(line.lstrip().removeprefix(QUOTES), is_terminal)
        except EOFError:
            if is_terminal:
                print()
            return None
        except KeyboardInterrupt:
            print("\nCtrl-D leaves.")


def _read_quoted(line: str, is_terminal: bool) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(input(MORE if is_terminal else ""))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


def write(text: str) -> None:
    """Print and flush, without a newline."""
    sys.stdout.write(text)
    sys.stdout.flush()
