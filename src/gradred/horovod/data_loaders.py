"""A base class for data loaders, and a mixin that loads batches ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

_END = object()


class BaseDataLoader:
    """Base class of loaders. A subclass yields its batches in `_iterate`."""

    def __len__(self) -> int:
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of an epoch."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """Convert a batch before the loader yields it. Runs in the thread that iterates."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin(BaseDataLoader):
    """Loads batches ahead. Name it first: `class Loader(AsyncDataLoaderMixin, MyLoader)`.

    Args:
        async_loader_queue_size: number of batches loaded ahead. 0: no thread, none loaded ahead.
        debug_data_loader: ignored.
        args: arguments of the other base class.
        kwargs: keyword arguments of the other base class.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self._ends: set[threading.Event] = set()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Stop the threads that load ahead."""
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
        finally:  # also if the loop is left early
            end.set()
            self._ends.discard(end)
            thread.join()

    def _load(self, batches: queue.Queue[Any], end: threading.Event) -> None:
        try:
            for batch in self._iterate():
                if not _put(batches, batch, end):
                    return
        except Exception as error:  # the iterating thread raises it
            _put(batches, _Failure(error), end)
        _put(batches, _END, end)


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


_LOOK_EVERY = 0.1  # seconds between checks for a closed loader


def _next(batches: queue.Queue[Any], end: threading.Event) -> Any:
    while not end.is_set():
        try:
            return batches.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            continue
    return _END


def _put(batches: queue.Queue[Any], batch: Any, end: threading.Event) -> bool:
    """Put a batch into the queue. Returns False if the loader has been closed."""
    while not end.is_set():
        try:
            batches.put(batch, timeout=_LOOK_EVERY)
        except queue.Full:
            continue
        return True
    return False
