"""Where the server listens: the Unix socket's file and its lock, and how the place is told."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.server.launch.sockets import bind, listening, url_of


def stale(path: Path) -> None:
    """Leave a socket file as a killed server does."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_socket_is_there_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(FrontendConfig(uds=str(path), host="nowhere.invalid", port=1)) as sock:
        assert stat.S_ISSOCK(path.stat().st_mode)
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        assert url_of(sock) == f"unix:{path}"
    assert names_in(tmp_path) == []


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), listening(FrontendConfig(uds=str(tmp_path / "s"))):
        raise ZeroDivisionError
    assert names_in(tmp_path) == []


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stale(path)
    (tmp_path / "s.lock").touch()
    with listening(FrontendConfig(uds=str(path))) as sock:
        sock.listen()
    assert names_in(tmp_path) == []


def test_one_that_does_not_listen_yet_is_not_replaced(tmp_path: Path) -> None:
    frontend = FrontendConfig(uds=str(tmp_path / "s"))
    with listening(frontend) as sock:
        with pytest.raises(ConfigError, match="is in use"), listening(frontend):
            raise AssertionError("it was taken over")
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(frontend.uds or "")


def test_the_lock_of_a_killed_holder_is_free(tmp_path: Path) -> None:
    path = tmp_path / "s"
    code = (
        "import os; from dovetail.server.launch.sockets import listening;"
        "from dovetail.config.sections.frontend import FrontendConfig\n"
        f"with listening(FrontendConfig(uds={str(path)!r})): os._exit(9)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 9
    assert names_in(tmp_path) == ["s", "s.lock"]
    with listening(FrontendConfig(uds=str(path))):
        assert path.exists()
    assert names_in(tmp_path) == []


def test_another_program_is_not_robbed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with (
            pytest.raises(ConfigError, match=r"--uds: .*is in use"),
            listening(FrontendConfig(uds=str(path))),
        ):
            raise AssertionError("it was taken over")
        assert path.exists()


@pytest.mark.parametrize("name", ["x" * 200, "none/s", "file"])
def test_where_no_socket_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    with (
        pytest.raises(ConfigError, match="--uds: ") as found,
        listening(FrontendConfig(uds=str(tmp_path / name))),
    ):
        raise AssertionError("it was bound")
    assert found.value.fix
    assert names_in(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_the_place_is_told() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert url_of(sock) == f"http://127.0.0.1:{port}"
        assert url_of(sock, has_tls=True) == f"https://127.0.0.1:{port}"
