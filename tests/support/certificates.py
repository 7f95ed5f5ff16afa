"""Certificates: throw-away keys and certificates for tests of TLS, made by the openssl command.

One authority has signed `first`, `second` (servers on localhost) and `client`; another one has
signed `stranger`. Nothing here is for any use but a test's.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_LEAF = """subjectAltName=DNS:localhost,IP:127.0.0.1
basicConstraints=CA:FALSE
keyUsage=digitalSignature
authorityKeyIdentifier=keyid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """A folder with NAME.pem and NAME.key."""

    folder: Path

    def cert(self, name: str) -> str:
        """Return the path of a certificate."""
        return str(self.folder / f"{name}.pem")

    def key(self, name: str) -> str:
        """Return the path of a key."""
        return str(self.folder / f"{name}.key")


def make_certificates(folder: Path) -> Certificates:
    """Return the certificates, made in this folder. Raises: FileNotFoundError without openssl"""
    (folder / "leaf.cnf").write_text(_LEAF)
    for name in ("authority", "other"):
        _openssl(folder, "req", "-x509", *_EC, *_files(name), "-days", "9", "-subj", f"/CN={name}",
                 "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    for name in ("first", "second", "client"):
        _sign(folder, name, "authority")
    _sign(folder, "stranger", "other")
    locked = ("-aes256", "-passout", "pass:secret", "-out", "locked.key")
    _openssl(folder, "pkey", "-in", "first.key", *locked)
    return Certificates(folder=folder)


def _sign(folder: Path, name: str, authority: str) -> None:
    _openssl(
        folder, "req", *_EC, "-keyout", f"{name}.key", "-out", "ask.csr", "-subj", f"/CN={name}"
    )
    _openssl(folder, "x509", "-req", "-in", "ask.csr", "-out", f"{name}.pem", "-days", "9",
             "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial",
             "-extfile", "leaf.cnf")  # fmt: skip


def _files(name: str) -> tuple[str, ...]:
    return ("-keyout", f"{name}.key", "-out", f"{name}.pem")


def _openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)
