"""Who may manage the models of a gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.datastructures import Headers

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.gateway import GatewayConfig
from dovetail.errors import ConfigError, RequestError
from dovetail_plugins.gateway.manage.access import Access, allows
from support.fake_models import Rig

LOAD = "/models/load"


@pytest.mark.parametrize(
    ("frontend", "flag", "is_allowed"),
    [
        ({}, None, True),
        ({"host": "127.0.0.1"}, None, True),
        ({"host": "::1"}, None, True),
        ({"host": "localhost"}, None, True),
        ({"uds": "/tmp/s"}, None, True),
        ({"api_key": ("k",)}, None, True),
        ({"host": "0.0.0.0"}, None, False),
        ({"host": "::"}, None, False),
        ({"host": "192.168.1.2", "api_key": ("k",)}, None, False),
        ({"allowed_hosts": ("*",)}, None, False),  # behind a proxy, or under any name
        ({"host": "0.0.0.0"}, True, True),
        ({}, False, False),
    ],
)
def test_models_are_managed_from_this_machine_unless_a_flag_says_otherwise(
    frontend: dict[str, Any], flag: bool | None, is_allowed: bool
) -> None:
    config = GatewayConfig(manage_models=flag)
    assert allows(FrontendConfig(**frontend), config) is is_allowed


def status_of(headers: dict[str, str], *, frontend: Any = None, gateway: Any = None) -> int:
    """Return 200 if a request with these headers may manage models, else the status."""
    access = Access(FrontendConfig(**(frontend or {})), GatewayConfig(**(gateway or {})))
    try:
        access.check(Headers(headers))
    except RequestError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "text/plain"}, 200),  # curl -d, of this machine's own user
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"origin": "http://[::1]:8000"}, 200),
        ({"origin": "tauri://localhost"}, 200),
        ({"origin": "http://10.0.0.7:8000", "host": "10.0.0.7:8000"}, 200),
        ({"origin": "http://10.0.0.7:9000", "host": "10.0.0.7:8000"}, 403),
        ({"origin": "http://evil.test", "host": "localhost:8000"}, 403),
        ({"origin": "http://evil.test:8000", "host": "evil.test:8000"}, 403),  # DNS rebinding
        ({"origin": "http://localhost.evil.test"}, 403),
        ({"origin": "http://evil.test/localhost"}, 403),
        ({"origin": "http://[bad"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://evil.test", "content-type": "text/plain"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_sites_may_not(headers: dict[str, str], status: int) -> None:
    assert status_of(headers) == status
    assert status_of(headers, frontend={"host": "0.0.0.0"}, gateway={"manage_models": True}) == (
        status
    )


def test_an_origin_that_a_flag_names_may_and_a_star_names_none() -> None:
    page = {"origin": "https://tools.test"}
    assert status_of(page, frontend={"allowed_origins": ("https://tools.test",)}) == 200
    assert status_of(page, frontend={"allowed_origins": ("*",)}) == 403
    key = {"api_key": ("k",)}  # a page that has it was given it
    assert status_of(page, frontend=key) == 200


def test_keys_of_their_own() -> None:
    own = {"admin_api_key": ("boss", "second")}
    assert status_of({}, gateway=own) == 401
    assert status_of({"authorization": "Bearer k"}, gateway=own) == 401
    assert status_of({"authorization": "Bearer boss "}, gateway=own) == 200
    assert status_of({"x-api-key": "second"}, gateway=own) == 200
    with pytest.raises(ConfigError, match="empty"):
        Access(FrontendConfig(), GatewayConfig(admin_api_key=(" ",)))


def answers(rig: Rig, *calls: tuple[str, str, str, dict[str, str]]) -> list[int]:
    """Return the statuses of calls: method, path, model, headers."""

    async def main() -> list[int]:
        async with rig.client() as client:
            return [
                (await client.request(method, path, json={"model": model}, headers=headers))
                .status_code
                for method, path, model, headers in calls
            ]  # fmt: skip

    return asyncio.run(main())


def test_users_keys_serve_and_management_keys_manage() -> None:
    rig = Rig("a", frontend={"api_key": ("user",)}, gateway={"admin_api_key": ("boss",)})
    user, boss = ({"authorization": f"Bearer {key}"} for key in ("user", "boss"))
    got = answers(
        rig,
        ("POST", LOAD, "a", {}),
        ("POST", LOAD, "a", user),
        ("POST", LOAD, "a", boss),
        ("POST", "/v1/completions", "a", user),
        ("POST", "/v1/completions", "a", boss),
        ("GET", "/models", "a", {}),
        ("GET", "/models", "a", user),
    )
    assert got == [401, 401, 200, 200, 401, 401, 200]
    assert rig.names_started() == ["a"]


def test_without_such_keys_users_keys_manage() -> None:
    rig = Rig("a", frontend={"api_key": ("user",)})
    user = {"authorization": "Bearer user"}
    assert answers(rig, ("POST", LOAD, "a", {}), ("POST", LOAD, "a", user)) == [401, 200]


def test_nothing_is_managed_from_elsewhere_by_default() -> None:
    rig = Rig("a", frontend={"host": "0.0.0.0"})
    assert answers(rig, ("POST", LOAD, "a", {}), ("GET", "/models", "a", {})) == [403, 200]
    assert rig.started == []
