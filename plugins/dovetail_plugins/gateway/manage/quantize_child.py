"""The process that quantizes a model for /api/create, and writes its progress as lines of JSON into
a pipe. Only this process imports torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dovetail.config.config import Config
from dovetail.errors import DovetailError
from dovetail.processes.process import read_boot
from dovetail_plugins.gateway.manage.lines import Lines
from dovetail_plugins.quantize.preparing import prepared
from dovetail_plugins.quantize.settings import QuantizeFlags

STATUS = "quantizing model to {}"


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The model's place, the quantizer's name, the folder to write, the name of the type for
    clients, and the number of the pipe."""

    model: str
    method: str
    out: str
    type: str
    pipe: int


def main() -> int:
    """Quantize as the boot message says; return the exit status."""
    boot = read_boot(Boot)
    out = Lines(boot.pipe)
    status = STATUS.format(boot.type)
    out.write(status=status)

    last = 0

    def tell(done: int, total: int) -> None:
        nonlocal last
        if done > last:
            last = done
            out.write(status=status, digest=boot.type, completed=done, total=total)

    try:
        flags = QuantizeFlags(method=boot.method, out=boot.out)
        prepared(Config.from_fields({"model": boot.model}), flags, tell=tell).write(Path(boot.out))
    except (DovetailError, OSError) as error:
        out.write(error=error.advice if isinstance(error, DovetailError) else str(error))
        return 1
    out.write(status="success")
    return 0
