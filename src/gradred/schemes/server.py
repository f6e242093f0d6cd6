"""A server of parameters: takes gradients from workers, and answers with parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradred.compression import Compressor, Floats
from gradred.schemes.exchange import Exchange, Key, Message, Stage
from gradred.schemes.layout import Piece
from gradred.schemes.store import Store


class Server:
    """Serves the pieces of one server until all workers are done and have the final parameters."""

    def __init__(
        self,
        exchange: Exchange,
        store: Store,
        pieces: Sequence[Piece],
        workers: Sequence[int],
        compressor: Compressor,
    ) -> None:
        self._exchange, self._store, self._pieces = exchange, store, pieces
        self._compressor = compressor
        self._at_work = set(workers)
        self._finals = len(workers)  # workers that have not all their final parameters yet
        self._waiting: dict[int, list[tuple[int, int]]] = {}  # by piece: worker and its step
        self._ask_final: list[Message] = []

    def serve(self) -> None:
        """Serve until the end. Blocks.

        Raises:
            PeerLost: a rank has ended.
            TimeoutError: no message has come within `GRADRED_TIMEOUT`.
        """
        while self._at_work or self._finals:
            self._take(self._exchange.any())
        self._exchange.flush()

    def _take(self, message: Message) -> None:
        stage, piece, clock, _ = message.key
        if stage == Stage.GRADIENT:
            count = self._pieces[piece].stop - self._pieces[piece].start
            gradient = self._compressor.decode(message.payload, count)
            self._store.put(piece, message.source, clock, gradient)
            self._waiting.setdefault(piece, []).append((message.source, clock))
            self._answer(piece)
        elif stage == Stage.DONE:
            self._at_work.discard(message.source)
            self._store.finish(message.source)
            for waiting in list(self._waiting):
                self._answer(waiting)
        elif stage == Stage.FINAL:
            self._ask_final.append(message)
        if not self._at_work:
            self._answer_finals()

    def _answer(self, piece: int) -> None:
        """Answer the workers for which the piece is fresh enough."""
        rest = []
        for worker, clock in self._waiting[piece]:
            found = self._store.get(piece, clock + 1)
            if found is None:
                rest.append((worker, clock))
            else:
                self._send(worker, Key(Stage.VALUE, piece, clock), *found)
        self._waiting[piece] = rest

    def _answer_finals(self) -> None:
        for message in self._ask_final:
            found = self._store.get(message.key.piece, 0)
            assert found is not None
            self._send(message.source, message.key, *found)
            self._finals -= message.number  # the last piece that the worker asks for counts 1
        self._ask_final.clear()

    def _send(self, worker: int, key: Key, version: int, weights: Floats) -> None:
        self._exchange.put([worker], key, weights.view(np.uint8), version)
