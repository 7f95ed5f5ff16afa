"""As flag_tests.py, for the flags of keys, owners and their limits."""

from __future__ import annotations

EDGES = "plugins/server/http/test_edges.py"

OWNER_FLAG_TESTS: dict[str, tuple[str, ...]] = {
    "admin_api_key": (
        "plugins/gateway/manage/test_access.py::test_users_keys_serve_and_management_keys_manage",
    ),
    "api_key": (f"{EDGES}::test_every_route_but_the_open_ones_needs_the_key",),
    "api_keys_file": ("plugins/gates/test_keys.py::test_a_request_is_its_keys",),
    "gate": (
        "plugins/gates/test_keys.py::test_a_bad_file_ends_the_start",
        "plugins/gates/test_keys.py::test_a_gate_of_ones_own",
    ),
    "max_num_queued_tokens": ("plugins/gates/test_limits.py::test_a_queue_of_tokens",),
    "owner_header": ("plugins/gates/test_keys.py::test_a_trusted_proxy_names_the_owner",),
    "owner_from_user": ("plugins/gates/test_keys.py::test_users_of_a_key",),
}
