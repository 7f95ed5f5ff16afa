"""One row for each missing feature: every row is used, every reference has its row, all agree.

To add a feature, delete its row in dovetail/unsupported.py: `test_every_reference_has_a_row` then
names each flag, choice, variable, path and field to be deleted from its table or supported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flag_pages import row_words

from dovetail import unsupported
from dovetail.config.compat.deprecated_flags import MAPPED, deprecated_flags
from dovetail.config.compat.unsupported_flags import UNSUPPORTED_FLAGS
from dovetail.config.config import flags
from dovetail.config.parse.foreign_variables import UnsupportedVariable, foreign_variables
from dovetail.config.report.describe import state_of
from dovetail.errors import RequestError
from dovetail.registry.unsupported_names import UNSUPPORTED_NAMES, why_unsupported
from dovetail.server.generate.body import fields as bodies
from dovetail.server.generate.body.foreign_fields import known_fields
from dovetail.server.generate.body.ignored_fields import FieldReporter
from dovetail.server.http.not_found import UNSUPPORTED_ROUTES, unsupported_route
from dovetail.unsupported import FEATURES
from dovetail_plugins.apis.responses.input import UNSUPPORTED_FIELDS, chat_of
from dovetail_plugins.apis.responses.protocol import ResponsesRequest

ROOT = Path(__file__).resolve().parents[2]
RESPONSES_VALUES: dict[str, Any] = {
    "prompt": {"id": "pmpt_1"},
}


def refusal(call: Callable[[], object]) -> str:
    """Return what a call is refused with."""
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value.what


def field_text(name: str) -> str:
    reporter = FieldReporter(is_strict=False)
    return refusal(lambda: reporter.check(bodies.Body.model_validate({name: "something"})))


def responses_text(name: str) -> str:
    body = ResponsesRequest.model_validate({"input": "hi", name: RESPONSES_VALUES[name]})
    return refusal(lambda: chat_of(body, []))


def references() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return what points at a feature: its name, the feature, and how its text is told."""
    rows: dict[str, tuple[str, Callable[[], Any]]] = {}
    for name, row in UNSUPPORTED_FLAGS.items():
        rows[f"flag {name}"] = (row.feature, lambda name=name: state_of(flags()[name])[1])
    for name, mapped in MAPPED.items():
        if mapped.feature is not None:
            flag = deprecated_flags()[name]
            rows[f"deprecated flag {name}"] = (mapped.feature, lambda flag=flag: state_of(flag)[1])
    for kind, names in UNSUPPORTED_NAMES.items():
        for name, feature in names.items():
            rows[f"{kind} {name}"] = (feature, partial(why_unsupported, kind, name))
    for name, variable in foreign_variables().items():
        if isinstance(variable, UnsupportedVariable):
            rows[f"variable {name}"] = (variable.feature, lambda v=variable: row_words(v)[1])
    for path, feature in UNSUPPORTED_ROUTES.items():
        rows[f"path {path}"] = (feature, partial(unsupported_route, path))
    for name, field in known_fields().items():
        if field.feature:
            rows[f"field {name}"] = (field.feature, partial(field_text, name))
    for name, feature in UNSUPPORTED_FIELDS.items():
        rows[f"field {name} of /v1/responses"] = (feature, partial(responses_text, name))
    return rows


REFERENCES = references()


def test_every_row_is_used() -> None:
    assert set(FEATURES) - {feature for feature, _ in REFERENCES.values()} == set()


def test_every_reference_has_a_row() -> None:
    unknown = {
        name: feature for name, (feature, _) in REFERENCES.items() if feature not in FEATURES
    }
    assert unknown == {}


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_a_reference_says_the_sentence_of_its_feature(name: str) -> None:
    feature, text = REFERENCES[name]
    assert FEATURES[feature].what in text()


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_a_row_is_needed_by_its_references_alone(
    feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FEATURES, feature)
    without_text = set()
    for name, (_, text) in REFERENCES.items():
        try:
            text()
        except KeyError:
            without_text.add(name)
    assert without_text == {name for name, (wanted, _) in REFERENCES.items() if wanted == feature}


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_a_row_is_fit_to_stand_in_a_sentence(feature: str) -> None:
    row = FEATURES[feature]
    assert row.what and not row.what.endswith(".") and not row.fix.endswith(".")
    assert unsupported.sentence(feature) == f"{row.what}."


def test_no_other_file_says_what_a_row_says() -> None:
    own = Path(unsupported.__file__).resolve()
    texts = {
        path: re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for folder in ("core", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        if path.resolve() != own
    }
    doubled = [
        (feature, path.name)
        for feature, row in FEATURES.items()
        for path, text in texts.items()
        if row.what in text
    ]
    assert doubled == []
