"""GET /settings: who may know them, and what is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.config.config import Config
from dovetail.config.report.in_force import InForce, in_force, selections
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.data.spec import Selection
from dovetail.server.app import build_app
from dovetail_plugins.apis.settings.routes import may_show
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_spec
from support.serving import built_in_apis, send

NOTHING = InForce(settings=(), sampling=(), plugins=(), facts={})


def asked(told: InForce | None = NOTHING, *, key: str = "", **frontend: Any) -> Any:
    """Return the answer of a server with these flags."""
    app = build_app(
        FakeAsyncEngine(),  # type: ignore[arg-type]
        FrontendConfig(**frontend),
        built_in_apis(),
        in_force=told,
    )
    return send(app, "GET", "/settings", **({"authorization": f"Bearer {key}"} if key else {}))


@pytest.mark.parametrize(
    ("frontend", "is_told"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "api_key": ("k",)}, True),
        ({"host": "0.0.0.0", "enable_dev_endpoints": True}, True),
        ({"allowed_hosts": ("*",)}, False),
        ({"uds": "/run/socket"}, True),
    ],
)
def test_settings_are_told_to_those_with_a_key_or_on_this_machine(
    frontend: dict[str, Any], is_told: bool
) -> None:
    assert may_show(FrontendConfig(**frontend)) is is_told
    answer = asked(key="k", **frontend)
    assert answer.status_code == (200 if is_told else 403)
    if not is_told:
        assert "--api-key" in answer.json()["error"]["message"]


def test_without_the_key_nothing_is_told() -> None:
    assert asked(api_key=("k",)).status_code == 401


def test_a_process_that_was_not_told_says_so() -> None:
    assert asked(None).status_code == 404


def test_settings_come_with_their_origin_and_without_secrets() -> None:
    config = Config.from_fields({"api_key": ["secret-key"], "port": 8123}, origin="command line")
    config = config.with_fields({"max_num_seqs": 3}, origin="settings.yaml")
    plugin = Selection(kind="api", name="mine", target="a:B", options={"api_key": "secret-option"})
    made = in_force(config, fake_spec(), {}, [plugin, plugin])
    answer = asked(made)
    assert "secret-" not in answer.text
    rows = {row["flag"]: row for row in answer.json()["settings"]}
    assert (rows["--port"]["value"], rows["--port"]["origin"]) == (8123, "command line")
    assert rows["--max-num-seqs"]["origin"] == "settings.yaml"
    assert rows["--api-key"]["value"] == "***"
    assert rows["--ui"]["is_chosen"] is False and rows["--ui"]["help"]
    (mine,) = [one for one in answer.json()["plugins"] if one["kind"] == "api"]
    assert mine["options"] == {"api_key": "***"}


def test_what_is_told_crosses_processes() -> None:
    made = in_force(Config(), fake_spec(), {})
    assert msgspec.json.decode(msgspec.json.encode(made), type=InForce) == made


def test_every_plugin_of_a_spec_is_found() -> None:
    spec = fake_spec()
    found = {one.kind for one in selections(spec)}
    assert {"model", "scheduler", "executor", "worker", "tokenizer", "kv_policy"} <= found
