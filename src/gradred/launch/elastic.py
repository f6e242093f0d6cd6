"""An elastic job, which is started again without lost ranks and hosts, and with new ones.

If ranks of one host fail, the others may continue by themselves (`Comm.shrink`). Otherwise the job
starts again from its newest state. It also starts again when the hosts have room for more ranks
than still run. Then all ranks are notified, and end at their next commit.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from gradred._util import clock
from gradred.launch import foreground, state_files
from gradred.launch.discovery import Discovery, FixedHosts
from gradred.launch.hosts import Host, Hosts, place
from gradred.launch.job import Failure, Job, Order

_FAILURES = 2  # after so many failures a host gets no more ranks
_LOOK = 0.2  # seconds between checks for hosts while there are too few

Make = Callable[[Sequence[Host], float], tuple[Order, foreground.Look]]
"""Makes the order and look of a start on these hosts, so many seconds after the first start."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of an elastic job.

    Attributes:
        start: ranks that the hosts must have room for at the first start.
        least: ranks that the hosts must have room for later.
        most: the largest number of ranks; None for one per slot.
        resets: the largest number of restarts; None for no limit.
        wait_limit: seconds that the job waits for hosts.
    """

    start: int
    least: int
    most: int | None = None
    resets: int | None = None
    wait_limit: float = 600.0


def run(limits: Limits, discovery: Discovery, folder: str, make: Make) -> int:
    """Run the job to its end; returns the status to exit with.

    After success the states in `folder` are removed.
    """
    try:
        status = _Elastic(limits, discovery, make).run()
    finally:
        discovery.close()
    if status == 0:
        state_files.clear(folder)
    return status


def plan(limits: Limits, usable: Sequence[Host]) -> list[Host]:
    """Return the hosts with the number of ranks of each: slots are filled host by host."""
    found = Hosts("", tuple(usable))
    return place(found, min(found.slots, limits.most or found.slots)) if usable else []


class _Elastic:
    def __init__(self, limits: Limits, discovery: Discovery, make: Make) -> None:
        self._limits = limits
        self._discovery = discovery
        self._make = make
        self._listed: Sequence[Host] = ()
        self._failures: Counter[str] = Counter()  # by host
        self._order: list[str] = []  # hosts that have had ranks, in the order of their first use
        self._begun = clock.now()
        self._placed: Sequence[Host] = ()
        self._host_of: list[str] = []  # by rank
        self._seen: set[int] = set()  # ranks that have failed since the last start
        self._announced = False
        self._resets = 0
        self._failed_with = 0  # the status of the last rank that failed

    def run(self) -> int:
        self._listed = self._discovery.first()
        needed, status = self._limits.start, 1
        while self._wait_for(needed):
            if self._resets:
                ranks = sum(host.slots or 0 for host in self._placed)
                _say(f"starting again with {ranks} rank{'s' if ranks > 1 else ''}")
            outcome = self._start()
            if outcome.stopped or (outcome.status == 0 and not outcome.wants_again):
                return outcome.status
            status = outcome.status or self._failed_with or 1
            if not (self._seen or outcome.wants_again or self._blame_new_hosts()):
                return status
            self._order += [one.name for one in self._placed if one.name not in self._order]
            if self._resets == self._limits.resets:
                _say(f"started again {self._resets} times (--reset-limit): ended")
                return status
            self._resets += 1
            needed = self._limits.least
        return status

    def _start(self) -> foreground.Outcome:
        self._host_of = [one.name for one in self._placed for _ in range(one.slots or 0)]
        self._seen, self._announced = set(), False
        order, look = self._make(self._placed, clock.now() - self._begun)
        return foreground.carry_out(order, look, self._watch)

    def _plan(self) -> list[Host]:
        """Return the hosts with their ranks if started now; hosts used before come first."""
        usable = [one for one in self._listed if self._failures[one.name] < _FAILURES]
        usable.sort(
            key=lambda one: self._order.index(one.name) if one.name in self._order else sys.maxsize
        )
        return plan(self._limits, usable)

    def _wait_for(self, ranks: int) -> bool:
        """Wait until there is room for so many ranks; False after the time limit."""
        deadline = clock.now() + self._limits.wait_limit
        said = False
        while True:
            self._placed = self._plan()
            room = sum(host.slots or 0 for host in self._placed)
            if room >= ranks:
                return True
            left_out = [host for host, count in self._failures.items() if count >= _FAILURES]
            why = f"there is room for {room} of the {ranks} ranks that are needed"
            if left_out:
                why += f"; left out after {_FAILURES} failures: {', '.join(left_out)}"
            if isinstance(self._discovery, FixedHosts) or clock.now() > deadline:
                _say(f"{why}: ended")
                return False
            if not said:
                _say(f"{why}; waiting for hosts, {self._limits.wait_limit:g} s at most")
                said = True
            time.sleep(clock.nap(_LOOK))
            self._listed = self._discovery.now()

    def _watch(self, job: Job) -> None:
        for failure in job.failures:
            if failure.rank not in self._seen:
                self._note(job, failure)
        self._listed = self._discovery.now()
        may_not = self._announced or self._resets == self._limits.resets
        if may_not or job.ending or job.missing or job.fatal:
            return
        living = [host for rank, host in enumerate(self._host_of) if rank not in self._seen]
        room = sum(host.slots or 0 for host in self._plan())
        listed = {host.name for host in self._listed}
        if room > len(living) or (room >= self._limits.least and not listed.issuperset(living)):
            self._announced = True
            job.announce_hosts()

    def _note(self, job: Job, failure: Failure) -> None:
        """Count a failure, unless it may follow from another that the ranks have not survived."""
        comes_of_another = any(one.rank in self._seen for one in job.fatal)
        self._seen.add(failure.rank)
        if not (failure.follows or comes_of_another):
            self._failures[self._host_of[failure.rank]] += 1
            self._failed_with = failure.status

    def _blame_new_hosts(self) -> bool:
        """Count a failure of each host without earlier ranks, if the job did not start."""
        new = [one.name for one in self._placed if one.name not in self._order]
        if len(new) == len(self._placed):
            return False
        self._failures.update(new)
        return bool(new)


def _say(text: str) -> None:
    print(f"gradred run: {text}", file=sys.stderr, flush=True)
