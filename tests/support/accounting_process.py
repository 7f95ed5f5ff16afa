"""A process that accounts for requests until it is killed: prints a line before and after each.

Arguments: the folder, the number of owners, the name of this process. `+ N OWNER P C G` is printed
once a request is accounted for, as a server answers its client then.
"""

from __future__ import annotations

import random
import sys

from msgspec.structs import replace

from dovetail.interfaces.stats import Caller
from dovetail_plugins.stat_loggers.accounts import Accounts
from dovetail_testing.fakes.objects import request_stats


def main(folder: str, num_owners: int, name: str) -> None:
    """Account for requests until killed."""
    accounts = Accounts(Accounts.Options(folder=folder), "model", 100)
    chance = random.Random(name)
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        owner = f"owner{chance.randrange(num_owners)}"
        counts = [chance.randrange(1, 100) for _ in range(3)]
        stats = replace(
            request_stats(),
            caller=Caller(owner=owner),
            prompt_tokens=counts[0],
            cached_tokens=counts[1],
            generated_tokens=counts[2],
        )
        sys.stdout.write(f"? {owner} {' '.join(map(str, counts))}\n")
        sys.stdout.flush()
        accounts.request(stats)
        sys.stdout.write(f"+ {owner} {' '.join(map(str, counts))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
