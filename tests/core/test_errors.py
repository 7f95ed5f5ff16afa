"""How an error's sentences are joined, in the terminal and over HTTP: one place for both."""

from __future__ import annotations

import pytest

from dovetail.errors import (
    ConfigError,
    DovetailError,
    EngineDead,
    RequestError,
    RequestFault,
    sentence,
    split_fix,
    with_fix,
)
from dovetail.server.http.errors import problem_of


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("the file is empty", "the file is empty."),
        ("the file is empty.", "the file is empty."),
        ("did you mean --port?", "did you mean --port?"),
        ('no plugin is called "a.b"', 'no plugin is called "a.b".'),
        ('it says "no."', 'it says "no."'),
        ("run `pip install x`", "run `pip install x`."),
        ("see the list (it is long)", "see the list (it is long)."),
        ("several lines.\n  one: bad\n", "several lines.\n  one: bad."),
        ("", ""),
    ],
)
def test_a_sentence_ends_once(text: str, ended: str) -> None:
    assert sentence(text) == ended
    assert sentence(ended) == ended


def test_what_and_fix_are_two_sentences() -> None:
    error = ConfigError("the file is empty", where="m.safetensors", fix="download it again")
    assert str(error) == "m.safetensors: the file is empty. Fix: download it again."
    assert (error.what, error.fix) == ("the file is empty.", "download it again.")
    assert error.args == ("the file is empty.",)


def test_a_text_of_both_is_taken_apart_again() -> None:
    assert split_fix(with_fix("it is missing", "run `x`")) == ("it is missing.", "run `x`.")
    assert split_fix(with_fix("it is missing", None)) == ("it is missing.", None)


@pytest.mark.parametrize("kind", [RequestError, RequestFault, EngineDead, DovetailError])
def test_clients_read_what_the_terminal_shows(kind: type[DovetailError]) -> None:
    error = kind("nothing is installed", where="response_format", fix="run `pip install x[y]`")
    message = problem_of(error).info.message
    assert message == "response_format: nothing is installed. Fix: run `pip install x[y]`."
    assert message == str(error)
