"""An exchange by parameter servers, as schedules: workers put gradients and get the sums.

It is not in the table of algorithms, since no plan runs it (`gradred.schemes` does); but as
schedules it is proved and simulated like them.
"""

from __future__ import annotations

import functools

from gradred.errors import UsageError
from gradred.schedules import Schedule, recv, reduce, scratch, send, work


@functools.lru_cache(maxsize=4)
def parameter_servers(size: int, servers: int) -> list[Schedule]:
    """The schedules of all ranks, of which `servers` also serve, each its part of the vector.

    Every rank sends each part to its server, which adds up what has come and sends the sum back to
    all. Servers are spread evenly over the ranks.
    Cost: 2 alpha + 2 (p-1)/servers n beta + (p-1)/servers n gamma at a server.
    Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.

    Raises:
        UsageError: there are fewer ranks than servers.

    Example:
        >>> from gradred.schedules import verify
        >>> verify(parameter_servers(6, 2)).messages
        20
    """
    if not 1 <= servers <= size:
        found = f"there are {size} ranks"
        raise UsageError(f"{servers} servers", found, "Give 1 to as many as there are")
    owners = [part * size // servers for part in range(servers)]
    return [_schedule(rank, size, owners) for rank in range(size)]


def _schedule(rank: int, size: int, owners: list[int]) -> Schedule:
    put, get = [], []
    for part, owner in enumerate(owners):
        others = [peer for peer in range(size) if peer != owner]
        if rank == owner:
            inboxes = [scratch(slot, part) for slot in range(len(others))]
            put += [recv(peer, box) for peer, box in zip(others, inboxes, strict=True)]
            get += [send(peer, work(part)) for peer in others]
        else:
            put.append(send(owner, work(part)))
            get.append(recv(owner, work(part)))
    if rank in owners:
        part = owners.index(rank)
        put += [reduce(scratch(slot, part), work(part)) for slot in range(size - 1)]
    rounds = [put, get] if size > 1 else []
    return Schedule(rounds, rank=rank, size=size, chunks=len(owners), name="parameter_servers")
