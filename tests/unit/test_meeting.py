"""How members of a group of torch.distributed meet in a store with keys of other groups."""

from __future__ import annotations

import contextlib
import datetime
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
meeting = pytest.importorskip("gradred.torch_distributed.meeting")

from gradred.errors import TimeoutError  # noqa: A004, E402

LIMIT = datetime.timedelta(seconds=20)


def meet_all(store: Any, size: int, said: str, late: int | None = None) -> list[Any]:
    """The result of each rank; the ranks come in any order, and perhaps one of them much later."""

    def come(rank: int) -> Any:
        time.sleep(0.2 if rank == late else random.uniform(0, 0.01))
        return meeting.meet(store, rank, range(size), f"{said} {rank}", LIMIT)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(come, range(size)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_hear_what_all_have_said_and_share_a_part_of_the_store(size: int) -> None:
    found = meet_all(dist.HashStore(), size, "by")
    assert all(everyone == [f"by {rank}" for rank in range(size)] for _, everyone in found)
    found[0][0].set("key", "of rank 0")
    assert all(part.get("key") == b"of rank 0" for part, _ in found)


@pytest.mark.parametrize("late", [None, 0, 1, 2])
def test_keys_of_earlier_meetings_count_for_nothing(late: int | None) -> None:
    store = dist.HashStore()
    for turn in range(10):
        found = meet_all(store, 3, f"turn {turn}", late if turn in (1, 5) else None)
        expected = [f"turn {turn} {rank}" for rank in range(3)]
        assert all(everyone == expected for _, everyone in found)
        found[2][0].add("used", 1)
        assert [part.add("used", 0) for part, _ in found] == [1, 1, 1]


@pytest.mark.parametrize("gone", [[0], [1], [0, 2], [1, 2]])
def test_nobody_meets_a_rank_that_has_ended_before_all_had_come(gone: list[int]) -> None:
    store = dist.HashStore()
    given_up = datetime.timedelta(seconds=0.05)

    def come_and_go(rank: int) -> None:
        with contextlib.suppress(RuntimeError):  # the store's error, or TimeoutError
            meeting.meet(store, rank, range(3), "gone", given_up)

    store.set_timeout(given_up)
    threads = [threading.Thread(target=come_and_go, args=(rank,)) for rank in gone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.set_timeout(LIMIT)
    found = meet_all(store, 3, "here", late=gone[0])
    assert all(everyone == ["here 0", "here 1", "here 2"] for _, everyone in found)


def test_who_waits_in_vain_says_how_many_are_missing() -> None:
    store = dist.HashStore()
    meet_all(store, 2, "before")
    with pytest.raises(TimeoutError, match=r"1 of 2 ranks have not come within 0\.1 s"):
        meeting.meet(store, 0, [4, 6], "alone", datetime.timedelta(seconds=0.1))
    with pytest.raises(TimeoutError, match="rank 4 has not come"):
        meeting.meet(store, 1, [4, 6], "alone", datetime.timedelta(seconds=0.1))


def test_time_limit_of_the_store_is_an_error_that_says_who_is_missing_and_what_to_do() -> None:
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=0.1))  # over before the group's
    remedy = "See what the other ranks do, or pass a longer timeout"
    with pytest.raises(TimeoutError, match=rf"rank 6 has not come within 0\.\d+ s.*{remedy}"):
        meeting.meet(store, 0, [4, 6], "alone", LIMIT)
    with pytest.raises(TimeoutError, match=rf"rank 4 has not come.*{remedy}"):
        meeting.meet(store, 1, [4, 6], "alone", LIMIT)


def test_other_errors_of_the_store_are_raised_as_they_are() -> None:
    class Broken(dist.Store):  # type: ignore[misc, name-defined]
        def get(self, key: str) -> bytes:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(RuntimeError, match=r"^Connection reset"):
        meeting.get(Broken(), "key", "rank 1 has not come")
