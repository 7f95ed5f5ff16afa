"""Every class name of a model card that `dovetail_plugins.published` reads: served, or a fault.

    python -m benchmarks.published_names [CASE...]

Each gets a tiny random checkpoint in the published layout, which has to answer as transformers'
own code does for the same model in its own layout; `dovetail inspect` has to say the same.
`make sweep` runs it. Returns 1 where something was refused or wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
SERVED = ("native", "backed")


def main() -> int:
    """Print a line a case; return 1 where one is not served."""
    from dovetail_plugins.published.config import PUBLISHED
    from dovetail_plugins.published.layouts import BY_TYPE
    from support.published_cases import CASES, write_published
    from support.tiny_configs import write_tiny
    from support.verdicts import verdict_of

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="*", help="these alone")
    names = parser.parse_args().case or list(CASES)
    faults = 0
    for name in names:
        architecture, case = CASES[name]
        with tempfile.TemporaryDirectory() as root:
            base = write_tiny(Path(root, "base"), case.model_type, **case.overrides)
            folder = write_published(base, Path(root, "published"), architecture, case)
            verdict = verdict_of(folder, reference=base)
        faults += verdict.state not in SERVED
        print(f"{name}: {architecture} {verdict.state} {verdict.reason}", flush=True)
    untried = {*PUBLISHED, *BY_TYPE} - {architecture for architecture, _ in CASES.values()}
    print(f"without a case: {', '.join(sorted(untried)) or 'none'}")
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
