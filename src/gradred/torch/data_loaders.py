"""A loader of batches to derive from, and a class to mix in that loads them in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

_END = object()


class BaseDataLoader:
    """A subclass says what it iterates over, in `_iterate`."""

    def __len__(self) -> int:
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """The batches of an epoch."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """A batch as it leaves the loader; called in the thread that asks for it."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin(BaseDataLoader):
    """Put it first among the base classes: `class Loader(AsyncDataLoaderMixin, MyLoader)`.

    Args:
        async_loader_queue_size: so many batches are loaded ahead; 0: none is, without a thread.
        debug_data_loader: no effect.
        args: for the other base class.
        kwargs: likewise.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        del debug_data_loader
        self.async_loader_queue_size = async_loader_queue_size
        self._ends: set[threading.Event] = set()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the threads that load ahead."""
        for end in list(self._ends):
            end.set()

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()
            return
        batches: queue.Queue[Any] = queue.Queue(self.async_loader_queue_size)
        end = threading.Event()
        self._ends.add(end)
        thread = threading.Thread(target=self._load, args=(batches, end), daemon=True)
        thread.start()
        try:
            while (batch := _next(batches, end)) is not _END:
                if isinstance(batch, _Failure):
                    raise batch.error
                yield self._process_batch(batch)
        finally:  # also where the loop is left early
            end.set()
            self._ends.discard(end)
            thread.join()

    def _load(self, batches: queue.Queue[Any], end: threading.Event) -> None:
        try:
            for batch in self._iterate():
                if not _put(batches, batch, end):
                    return
        except Exception as error:  # for the thread that iterates
            _put(batches, _Failure(error), end)
        _put(batches, _END, end)


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


_LOOK_EVERY = 0.1  # seconds, whether the loader has been closed


def _next(batches: queue.Queue[Any], end: threading.Event) -> Any:
    while not end.is_set():
        try:
            return batches.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            continue
    return _END


def _put(batches: queue.Queue[Any], batch: Any, end: threading.Event) -> bool:
    """False: the loader has been closed."""
    while not end.is_set():
        try:
            batches.put(batch, timeout=_LOOK_EVERY)
        except queue.Full:
            continue
        return True
    return False
