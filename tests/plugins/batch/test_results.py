"""The output file: gone on with after any end, never mixed with what is not a result."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import ConfigError
from dovetail_plugins.apis.batches.answer import LineFault, ResultLine, RouteAnswer
from dovetail_plugins.apis.batches.lines import name_of
from dovetail_plugins.batch.results import ResultFile


def good(custom_id: str, status: int = 200) -> ResultLine:
    body = msgspec.Raw(b'{"a":1}')
    response = RouteAnswer(status_code=status, request_id="r", body=body)
    return ResultLine(id=name_of(custom_id), custom_id=custom_id, response=response)


def written(path: Path, *results: ResultLine, resumes: bool = True) -> ResultFile:
    """Return the closed results after a run that added these."""
    found = ResultFile.open(path, resumes=resumes)
    found.begin()
    for result in results:
        found.add(result)
    found.close()
    return found


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def test_a_line_has_openais_shape(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fault = LineFault(code="invalid_json", message="line 3: no.")
    written(path, good("a"), ResultLine(id="batch_req_1", custom_id=None, error=fault))
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    response = {"status_code": 200, "request_id": "r", "body": {"a": 1}}
    assert first == {
        "id": name_of("a"), "custom_id": "a", "response": response, "error": None,
    }  # fmt: skip
    error = {"code": "invalid_json", "message": "line 3: no."}
    assert second == {"id": "batch_req_1", "custom_id": None, "response": None, "error": error}


def test_a_second_run_knows_what_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fault = LineFault(code="x", message="y")
    written(
        path, good("a"), good("b", 400), ResultLine(id="batch_req_12", custom_id=None, error=fault)
    )
    found = written(path, good("c"))
    assert found.answered == {name_of("a"), name_of("b"), "batch_req_12"}
    assert found.failed == {name_of("b"), "batch_req_12"}
    assert ids(path) == ["a", "b", None, "c"]


@pytest.mark.parametrize("num_bytes", [1, 5, 40, 100])
def test_a_torn_last_line_is_cut_off(num_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "out"
    written(path, good("a"))
    torn = msgspec.json.encode(good("b"))[:num_bytes]
    path.write_bytes(path.read_bytes() + torn)
    found = written(path, good("b"))
    assert found.answered == {name_of("a")}
    assert ids(path) == ["a", "b"]


@pytest.mark.parametrize("resumes", [True, False])
def test_nothing_longer_stays_behind_a_shorter_line(resumes: bool, tmp_path: Path) -> None:
    path = tmp_path / "out"
    written(path, good("a"))
    torn = msgspec.json.encode(good("b" * 900))[:-1]
    path.write_bytes(path.read_bytes() + torn)
    written(path, good("c"), resumes=resumes)
    assert ids(path) == (["a", "c"] if resumes else ["c"])


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out"
    written(path, good("a"))
    path.write_bytes(path.read_bytes().rstrip())
    assert written(path, good("b")).answered == {name_of("a")}
    assert ids(path) == ["a", "b"]


@pytest.mark.parametrize("text", ["dear diary", '{"a": 1}\n', "dear\ndiary\n"])
def test_a_file_of_something_else_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not the result"):
        ResultFile.open(path, resumes=True)
    assert path.read_text() == text
    written(path, good("a"), resumes=False)
    assert ids(path) == ["a"]


def test_nothing_is_lost_before_the_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "out"
    written(path, good("a"))
    ResultFile.open(path, resumes=False).close()
    assert ids(path) == ["a"]


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    first = ResultFile.open(tmp_path / "out", resumes=True)
    with pytest.raises(ConfigError, match="another process"):
        ResultFile.open(tmp_path / "out", resumes=True)
    first.close()
    ResultFile.open(tmp_path / "out", resumes=True).close()


def test_an_absent_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ResultFile.open(tmp_path / "no" / "out", resumes=True)
    assert caught.value.fix == f"make the folder {tmp_path / 'no'}."
