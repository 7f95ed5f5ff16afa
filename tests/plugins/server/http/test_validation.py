"""What is wrong with a body is told by the branch that fits best, at its place in the body."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError

from dovetail.server.http.validation import BodyFault, fault_of
from support.serving import USER, app_for, complete, send


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ["a"] * 1025}, "prompt: List should have at most 1024 items, not 1025"),
        ({"prompt": [[1]] * 1025}, "prompt: List should have at most 1024 items, not 1025"),
        ({"prompt": []}, "prompt: List should have at least 1 item, not 0"),
        ({"prompt": 5}, "prompt: Input should be a valid string or list"),
        ({"prompt": [1, "a"]}, "prompt[1]: Input should be a valid integer"),
        ({"prompt": [[1], "a"]}, "prompt[1]: Input should be a valid list"),
        ({"logit_bias": {"5": "x"}}, "logit_bias[5]: Input should be a valid number"),
        ({"logit_bias": {"str": "x"}}, "logit_bias.str: Input should be a valid number"),
        ({"logit_bias": {"x y": 1}}, 'logit_bias: "x y" is not a token id.'),
        ({"logit_bias": {"\x1b[2J": 1}}, 'logit_bias: "\\u001b[2J" is not a token id.'),
        ({"logit_bias": {"9" * 99: 1}}, f'logit_bias: "{"9" * 64}... (35 more)" is not a'),
        ({"stop": 5}, "stop: Input should be a valid string or list"),
        ({"stop": ["a", 5]}, "stop[1]: Input should be a valid string"),
        ({"guided_choice": ["a", 5]}, "guided_choice[1]: Input should be a valid string"),
    ],
)  # fmt: skip
def test_the_text_of_an_error(fields: dict[str, Any], message: str) -> None:
    app, _ = app_for()
    answer = complete(app, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(message), error
    assert error["param"] == message.partition(":")[0]


def test_one_prompt_of_several_is_named() -> None:
    app, _ = app_for()
    error = complete(app, prompt=["a", "x" * 5000]).json()["error"]
    assert error["param"] == "prompt[1]"
    error = complete(app, prompt="x" * 5000).json()["error"]
    assert error["param"] == "prompt"


def test_keys_of_a_body_may_look_like_types() -> None:
    app, _ = app_for()
    body = {"messages": USER, "tools": [{"function": {"name": "f", "parameters": [1]}}]}
    error = send(app, "POST", "/v1/chat/completions", body).json()["error"]
    assert error["param"] == "tools[0].function.parameters"


def test_a_body_that_is_not_json_says_where() -> None:
    app, _ = app_for()
    body = b'{"prompt": "a",, "n": 1}'
    answer = send(app, "POST", "/v1/completions", body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "invalid_json"
    assert error["message"].endswith("at character 15."), error


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//embeddings", "/v1/embeddings"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/api/v1/models", "/v1/models"),
    ],
)
def test_a_path_that_is_not_there_names_the_one_that_was_meant(path: str, meant: str) -> None:
    app, _ = app_for()
    error = send(app, "POST", path, {}).json()["error"]
    assert error["code"] == "unknown_path"
    assert error["message"].endswith(f"Did you mean {meant}?"), error


def test_a_path_like_no_other_names_none() -> None:
    app, _ = app_for()
    assert "Did you mean" not in send(app, "GET", "/qqqqqqqqqqqq").text


class Picture(BaseModel):
    type: Literal["picture"]
    url: str
    width: int = 0


class Sound(BaseModel):
    type: Literal["sound"]
    data: str
    rate: int


def fault(union: Any, value: Any) -> BodyFault:
    """Return what is wrong with a value of a field."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[Literal["part"], union]).validate_python({"part": value})
    errors = [{**one, "loc": ("body", *one["loc"])} for one in caught.value.errors()]
    found = fault_of(RequestValidationError(errors, body={"part": value}))
    assert found is not None
    return found


@pytest.mark.parametrize("union", [str | Picture | Sound, Sound | Picture | str, Picture | Sound])
@pytest.mark.parametrize(
    ("value", "param", "what"),
    [
        ({"type": "picture"}, "part.url", "Field required"),
        ({"type": "sound", "rate": 1}, "part.data", "Field required"),
        ({"type": "sound", "data": "x"}, "part.rate", "Field required"),
        ({"type": "picture", "url": 5}, "part.url", "Input should be a valid string"),
        (
            {"type": "picture", "url": "x", "width": []},
            "part.width",
            "Input should be a valid integer",
        ),
    ],
)
def test_the_branch_that_is_meant_is_named(union: Any, value: Any, param: str, what: str) -> None:
    found = fault(union, value)
    assert (found.param, found.what) == (param, what)


def test_a_name_that_no_branch_has_lists_those_there_are() -> None:
    found = fault(str | Picture | Sound, {"type": "photo", "url": "x"})
    assert found.message == "part.type: Input should be 'picture' or 'sound'"
