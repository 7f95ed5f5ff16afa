"""An endpoint of other people's code on a whole server: docs/tutorials/add_an_endpoint.md, step by
step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.processes.process import child_environment
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorials" / "add_an_endpoint.md").read_text(encoding="utf-8")
TEXT = {"text": "It rained all day, and the picnic was put off.", "max_tokens": 5, "seed": 1}
KEY = {"Authorization": "Bearer secret"}


def python_blocks() -> list[str]:
    """Return the pieces of Python that the tutorial shows."""
    return re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tutorial's package, as pip would leave it."""
    folder = tmp_path_factory.mktemp("site")
    package, about = folder / "my_package", folder / "my_package-0.1.dist-info"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "summarize.py").write_text(python_blocks()[0], encoding="utf-8")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 0.1\n")
    (table,) = re.findall(
        r'```toml\n\[project.entry-points."(.*?)"\]\n(.*?)```', TUTORIAL, re.DOTALL
    )
    group, names = table
    (about / "entry_points.txt").write_text(f"[{group}]\n" + names.replace('"', ""))
    return folder


@pytest.fixture(scope="module")
def path(installed: Path) -> dict[str, str]:
    """Return the environment in which the package is installed."""
    known = child_environment().get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join((str(installed), known))}


@pytest.fixture(scope="module")
def server(path: dict[str, str]) -> Iterator[ServerProcess]:
    flags = ("--api", "summarize", "--api-key", "secret", "--api-server-count", "2", "--port", "0")
    with ServerProcess(*flags, env=path) as running:
        yield running.wait_ready()


def test_the_tutorial(server: ServerProcess) -> None:
    with server.client(headers=KEY) as client:
        answer = client.post("/v1/summarize", json=TEXT).json()
        again = client.post("/v1/summarize", json=TEXT).json()
    assert answer == again
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["is_cut"] is True
    assert answer["summary"]


def test_what_surrounds_every_endpoint(server: ServerProcess) -> None:
    with server.client() as client:
        assert client.post("/v1/summarize", json=TEXT).status_code == 401
        client.headers.update(KEY)
        described = client.get("/openapi.json").json()
        assert "SummarizeRequest" in described["components"]["schemas"]
        error = client.post("/v1/summarize", json={"text": "word " * 9000}).json()["error"]
        assert (error["param"], error["code"]) == ("text", "context_length_exceeded")
        assert 'route="/v1/summarize",status="400"' in client.get("/metrics").text


def test_an_installed_family_is_not_served_unasked(path: dict[str, str]) -> None:
    with ServerProcess("--port", "0", env=path) as running, running.wait_ready().client() as client:
        assert client.post("/v1/summarize", json=TEXT).status_code == 404


def test_it_is_listed_and_keeps_the_clauses(path: dict[str, str]) -> None:
    def told(*args: str) -> str:
        command = [sys.executable, "-m", "dovetail", "plugins", *args]
        env = child_environment() | path
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
        return done.stdout

    assert re.search(
        r"api\s+summarize\s+my-package\s+my_package.summarize:Summarize", told("list", "api")
    )
    assert re.search(r"api:summarize@my-package: \d+ passed", told("check", "api:summarize"))


def test_what_endpoints_share(tmp_path: Path) -> None:
    """The tutorial's third step: the cache is given to the endpoint."""
    first, shared = python_blocks()[:2]
    imports, _, state = shared.partition("class Summarize(Api):\n    ...\n")
    endpoint = first.replace("server: ServerOf)", "server: ServerOf, cache: CacheOf)").replace(
        "    async with AsyncExitStack() as owned:\n",
        "    if body.text in cache.found:\n        return {'summary': cache.found[body.text]}\n"
        "    cache.found[body.text] = 'seen'\n    async with AsyncExitStack() as owned:\n",
    )
    head, separator, rest = endpoint.partition("DIALECT =")
    future = "from __future__ import annotations\n"
    text = head.replace(future, future + imports, 1) + separator + rest + state
    file = tmp_path / "summarize.py"
    file.write_text(text, encoding="utf-8")
    flags = ("--api", f"{file}:Summarize", "--port", "0")
    with ServerProcess(*flags) as running, running.wait_ready().client() as client:
        assert "usage" in client.post("/v1/summarize", json=TEXT).json()
        assert client.post("/v1/summarize", json=TEXT).json() == {"summary": "seen"}
