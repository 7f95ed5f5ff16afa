"""Lines of an input: read in bounded memory, named the same in every run, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail_plugins.apis.batches.lines import (
    BadLine,
    Line,
    custom_id_of,
    name_of_line,
    parse,
    read_lines,
    scan,
)

LIMIT = 1000
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


def line_of(custom_id: str = "a", **changes: Any) -> bytes:
    asked = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {}}
    return json.dumps(asked | changes).encode()


def file_of(tmp_path: Path, *lines: bytes, end: bytes = b"\n") -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines) + end)
    return path


def test_blank_lines_marks_and_foreign_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = file_of(
        tmp_path, b"\xef\xbb\xbf" + line_of("a") + b"\r", b"", b"  ", line_of("b"), end=b""
    )
    found = list(read_lines(path, LIMIT))
    assert [line.number for line in found] == [1, 4]
    assert [custom_id_of(line) for line in found] == ["a", "b"]


def test_of_a_long_line_only_its_beginning_is_held(tmp_path: Path) -> None:
    path = file_of(tmp_path, b"x" * 5000, line_of("b"))
    first, second = read_lines(path, LIMIT)
    assert (first.is_whole, len(first.raw), second.number) == (False, LIMIT + 1, 2)
    with pytest.raises(BadLine) as caught:
        parse(first)
    assert caught.value.code == "line_too_long"
    assert custom_id_of(second) == "b"


def test_two_lines_of_one_custom_id_are_both_named(tmp_path: Path) -> None:
    path = file_of(tmp_path, line_of("a"), line_of("b"), b"no json", line_of("c"), line_of("b"))
    with pytest.raises(ConfigError) as caught:
        scan(path, LIMIT, set(), set())
    assert caught.value.what == "lines 2 and 5 have the same custom_id 'b'."


def test_what_is_answered_is_counted(tmp_path: Path) -> None:
    path = file_of(tmp_path, line_of("a"), line_of("b"), b"no json", b"no json")
    names = [name_of_line(line, custom_id_of(line)) for line in read_lines(path, LIMIT)]
    assert len(set(names)) == 4
    found = scan(path, LIMIT, {names[0], names[3], "batch_req_other"}, {names[3]})
    assert (found.num_lines, found.num_answered, found.num_failed) == (4, 2, 1)


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (b"{", "invalid_json", "not valid JSON"),
        (line_of("DEEP").replace(b"{}", DEEP), "invalid_json", "nested too deep"),
        (b"[1]", "invalid_request", "got `array`"),
        (b'{"custom_id": "a"}', "invalid_request", "method"),
        (line_of(custom_id=7), "invalid_request", "custom_id"),  # type: ignore[arg-type]
        (line_of(method="GET"), "invalid_method", "must be POST"),
        (line_of(body=[1]), "invalid_body", "JSON object"),
        (line_of(body={"stream": True}), "stream_in_batch", "whole answers"),
    ],
)
def test_a_bad_line_says_what_is_wrong(raw: bytes, code: str, words: str) -> None:
    with pytest.raises(BadLine) as caught:
        parse(Line(number=1, raw=raw, is_whole=True))
    assert caught.value.code == code
    assert words in str(caught.value)
