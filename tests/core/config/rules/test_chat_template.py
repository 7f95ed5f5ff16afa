"""--chat-template is a file or a template: the check at start and the reader agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.checks import check_frontend_flags
from dovetail.config.rules.model.chat_template import load_template
from dovetail.errors import ConfigError


def given(value: str) -> str | None:
    """Return the template that both the start's check and the reader take."""
    config = Config.from_fields({"chat_template": value})
    check_frontend_flags(config.frontend, config.origins)
    return load_template(value)


@pytest.mark.parametrize("name", ["plain.jinja", "{odd}.jinja", "{{worse}}.jinja", "a{%b"])
def test_a_file_is_a_file_whatever_its_name(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("{{ messages }}", encoding="utf-8")
    assert given(str(file)) == "{{ messages }}"


@pytest.mark.parametrize(
    "text", ["{{ messages }}", "{% if a %}b{% endif %}", "two\nlines", "{# why #}", "{{x}}" * 999]
)
def test_text_is_text(text: str) -> None:
    assert given(text) == text


@pytest.mark.parametrize("value", ["no-such.jinja", "{no-such}.jinja", "{", "x" * 5000])
def test_what_is_neither_is_refused_by_both(value: str) -> None:
    config = Config.from_fields({"chat_template": value})
    for take in (
        lambda: check_frontend_flags(config.frontend, config.origins),
        lambda: load_template(value),
    ):
        with pytest.raises(ConfigError, match="neither a file nor a template") as caught:
            take()
        assert caught.value.where == "--chat-template"


def test_none_is_given() -> None:
    assert load_template(None) is None
    assert load_template("") is None


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "bad.jinja"
    file.write_bytes(b"\xff\xfe{{")
    with pytest.raises(ConfigError, match="cannot read"):
        load_template(str(file))
