"""One of two ranks: `leaving.py CASE`; rank 1 leaves in some way, rank 0 reports what it got."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mpi4py import MPI

CASE = sys.argv[1]
WORLD = MPI.COMM_WORLD
if "before_others_import" in CASE and WORLD.rank == 0:
    time.sleep(4)

import gradred  # noqa: E402

X, Y = np.ones(4), np.zeros(4)


def call(comm: gradred.Comm) -> None:
    comm.Allreduce(X, Y)


def call_non_blocking(comm: gradred.Comm) -> None:
    comm.Iallreduce(X, Y).Wait()


def call_tested(comm: gradred.Comm) -> None:
    request = comm.Iallreduce(X, Y)
    while not request.Test():
        time.sleep(0.001)


def leave(status: int = 7) -> None:
    if WORLD.rank == 1:
        sys.exit(status)
    time.sleep(0.3)


def report(comm: gradred.Comm, how: object = call) -> None:
    begin = time.monotonic()
    try:
        how(comm)  # type: ignore[operator]
    except gradred.Error as error:
        seconds = time.monotonic() - begin
        name = type(error).__name__
        found = {"rank": WORLD.rank, "error": name, "text": str(error), "seconds": seconds}
        print(json.dumps(found), flush=True)
        sys.exit(0)


def before_the_first_call_on_a_duplicate() -> None:
    call(gradred.Comm(WORLD))
    other = gradred.Comm(WORLD.Dup())
    leave()
    report(other)


def after_non_blocking_calls_only() -> None:
    comm = gradred.Comm(WORLD)
    call_non_blocking(comm)
    leave()
    report(comm, call_non_blocking)


def on_the_last_of_many_communicators() -> None:
    many = [gradred.Comm(WORLD.Dup()) for _ in range(70)]
    for comm in many:
        call(comm)
    leave()
    report(many[-1])


def by_an_exception_before_any_call() -> None:
    comm = gradred.Comm(WORLD)
    if WORLD.rank == 1:
        raise RuntimeError("on purpose")
    report(comm)


def raise_beside_a_thread(comm: gradred.Comm, reduce_for_ever: Callable[[], None]) -> None:
    threading.Thread(target=reduce_for_ever).start()
    call(comm)
    if WORLD.rank == 1:
        raise RuntimeError("on purpose")
    report(comm)


def by_an_exception_beside_a_thread() -> None:
    comm = gradred.Comm(WORLD)
    other = comm.Dup()

    def reduce_for_ever() -> None:
        while True:
            call(other)
            time.sleep(0.05)

    raise_beside_a_thread(comm, reduce_for_ever)


def by_an_exception_before_the_first_call_of_a_thread() -> None:
    comm = gradred.Comm(WORLD)
    other = comm.Dup()

    def reduce_for_ever() -> None:
        time.sleep(0.5)
        while True:
            call(other)

    raise_beside_a_thread(comm, reduce_for_ever)


def by_an_exception_beside_a_thread_on_survivors() -> None:
    survivors = gradred.Comm(WORLD.Dup()).shrink()

    def reduce_for_ever() -> None:
        while True:
            call(survivors)
            time.sleep(0.05)

    raise_beside_a_thread(gradred.Comm(WORLD), reduce_for_ever)


def by_an_exception_before_a_thread_connects() -> None:
    exchange = WORLD.Dup()

    def reduce_for_ever() -> None:
        time.sleep(0.5)
        connected = gradred.connect(WORLD.rank, WORLD.size, exchange.allgather)
        while True:
            call(connected)

    raise_beside_a_thread(gradred.Comm(WORLD), reduce_for_ever)


def by_an_exception_beside_a_thread_with_a_persistent_call() -> None:
    other = gradred.Comm(WORLD.Dup())
    request = other.Allreduce_init(np.ones(4), np.zeros(4))

    def reduce_for_ever() -> None:
        while True:
            request.Start()
            request.Wait()

    raise_beside_a_thread(gradred.Comm(WORLD), reduce_for_ever)


def by_an_exception_beside_an_executor() -> None:
    comm = gradred.Comm(WORLD)
    call(comm)
    if WORLD.rank == 1:
        ThreadPoolExecutor().submit(time.sleep, 6)
        raise RuntimeError("on purpose")
    report(comm)


def by_an_exception_beside_a_thread_that_sleeps() -> None:
    comm = gradred.Comm(WORLD)
    call(comm)
    if WORLD.rank == 1:
        threading.Thread(target=time.sleep, args=(6,)).start()
        raise RuntimeError("on purpose")
    report(comm)


def before_any_call() -> None:
    comm = gradred.Comm(WORLD)
    leave()
    report(comm)


def before_any_non_blocking_call() -> None:
    comm = gradred.Comm(WORLD)
    leave()
    report(comm, call_non_blocking)


def before_any_tested_call() -> None:
    comm = gradred.Comm(WORLD)
    leave()
    report(comm, call_tested)


def by_finalizing_before_any_call() -> None:
    comm = gradred.Comm(WORLD)
    if WORLD.rank == 1:
        MPI.Finalize()
        sys.exit(7)
    report(comm)


def long_before_others_import_gradred() -> None:
    comm = gradred.Comm(WORLD)
    leave(0)
    report(comm)


def after_the_others_gave_up() -> None:
    comm = gradred.Comm(WORLD)
    if WORLD.rank == 0:
        report(comm)
    else:
        time.sleep(4)


def while_a_message_is_on_its_way() -> None:
    """Rank 1 leaves with a large buffered send, which needs its progress."""
    comm = gradred.Comm(WORLD.Dup())
    call(comm)
    comm.Free()
    count = 4 << 20
    if WORLD.rank == 1:
        MPI.Attach_buffer(MPI.Alloc_mem(8 * count + MPI.BSEND_OVERHEAD))
        WORLD.Bsend(np.ones(count), dest=0)
        sys.exit(0)
    time.sleep(1)
    received = np.zeros(count)
    begin = time.monotonic()
    WORLD.Recv(received, 1)
    print(f"received {received.sum():g} after {time.monotonic() - begin:.1f} s", flush=True)


def with_no_descriptor_when_they_met() -> None:
    comm = gradred.Comm(WORLD)
    held = []
    if WORLD.rank == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    call(comm)
    for file in held:
        os.close(file)
    if WORLD.rank == 0:
        print(f"got {Y[0]:g}", flush=True)


def of_a_spawned_child() -> None:
    """The forked child ends while its parent continues."""
    parent = MPI.Comm.Get_parent()
    if parent != MPI.COMM_NULL:
        comm = gradred.Comm(parent.Merge())
        call(comm)
        parent.send(os.getpid(), dest=0)
        comm.Free()
        parent.Disconnect()
        return
    child = MPI.COMM_SELF.Spawn(sys.executable, [__file__, CASE], 1)
    comm = gradred.Comm(child.Merge())
    call(comm)
    pid = child.recv(source=0)
    comm.Free()
    child.Disconnect()
    begin = time.monotonic()
    while runs(pid) and time.monotonic() < begin + 10:
        time.sleep(0.05)
    print(f"child {'runs' if runs(pid) else 'gone'}, sum {Y[0]:g}", flush=True)


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


globals()[CASE]()
