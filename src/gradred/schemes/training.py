"""`Training`: data-parallel training of a NumPy or PyTorch model by any scheme."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI

from gradred.comm import Comm
from gradred.compression import Compressor, Floats
from gradred.errors import UsageError
from gradred.named import NamedOperations
from gradred.schemes.exchange import Exchange
from gradred.schemes.layout import Bucket, Layout
from gradred.schemes.server import Server
from gradred.schemes.store import Sgd, Store
from gradred.schemes.strategies import STRATEGIES, Member, Strategy
from gradred.schemes.table import Options
from gradred.schemes.transport import CLASSES

_CREDIT = 2  # buckets in flight during backward, if more urgent ones are to overtake others


class Training:
    """Trains one model on the workers of a communicator. Making one is blocking and collective.

    The last ranks of `comm` are servers, if the scheme has some; there `steps` serves the workers
    and gives no step. All ranks start with the parameters of rank 0.

    For a PyTorch model pass `model.parameters()`. `backward()` then starts to exchange each
    gradient when it is ready. Tensors are float32 in host memory. Parameters that require no
    gradient get rank 0's values, and are left out of everything else.

    A NumPy model computes its gradients into `training.gradients`, or passes them to `update`. The
    arrays of `parameters` have the values of `training.weights` when `update` or `need` returns.

    Args:
        parameters: arrays or tensors, in the order in which the forward pass needs them.
        scheme: a name of `SCHEMES`; the one option that chooses the scheme.
        rule: what gradients do to parameters.
        comm: the ranks; None: COMM_WORLD.
        options: the other options of `Options`, by name.

    Raises:
        UsageError: the options are impossible, or differ between ranks, or two parameters share
            memory; on all ranks.

    Example:
        >>> import numpy, gradred.schemes
        >>> from mpi4py import MPI
        >>> x = numpy.ones(3, "float32")
        >>> rule = gradred.schemes.Sgd(rate=0.5)
        >>> with gradred.schemes.Training([x], "bsp", rule=rule, comm=MPI.COMM_SELF) as training:
        ...     for step in training.steps(2):
        ...         training.gradients[0][:] = training.weights[0]
        ...         training.update()
        >>> training.weights[0]
        array([0.25, 0.25, 0.25], dtype=float32)
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        scheme: str = "bsp",
        *,
        rule: Sgd,
        comm: MPI.Intracomm | None = None,
        **options: Any,
    ) -> None:
        self.options = Options(scheme=scheme, **options)
        self._comm = Comm(MPI.COMM_WORLD if comm is None else comm)
        given = list(parameters)
        self._given = [one for one in given if getattr(one, "requires_grad", True)]
        frozen = [one for one in given if not getattr(one, "requires_grad", True)]
        self._arrays, self.layout, frozen_arrays = self._agree(self._given, frozen, rule)
        self.is_torch = any(map(_is_tensor, given))
        count, servers = self.layout.count, self.options.server_ranks
        workers = self._comm.size - servers
        self.workers, self.servers = range(workers), range(workers, self._comm.size)
        self._weights, self._gradient, self._velocity = np.zeros((3, count), np.float32)
        self.weights, self.gradients = self._views(self._weights), self._views(self._gradient)
        """The parameters and the gradients of this worker, as parts of one vector each."""
        self._begin_with_rank_zeros(frozen_arrays)
        operations = NamedOperations(self._comm, most_fused_bytes=0)
        self._operations = operations
        self.exchange: Exchange | None = None
        if self.options.needs_messages:
            transport = CLASSES[self.options.transport](self._comm, operations.look_for_lost)
            self.exchange = Exchange(transport, operations.look_for_lost)
        self._rule, self._compressor = rule, Compressor(self.options.compression)
        self._strategy: Strategy = STRATEGIES[self.options.by](
            Member(
                self._comm, operations, self.exchange, self._comm.rank, self.workers, self.servers,
                self.layout, self._compressor, rule, self._weights, self._gradient,
                self._velocity, self.options,
            )
        )  # fmt: skip
        self.clock = 0
        """The steps that this worker has made."""
        self._missing = [set(bucket.tensors) for bucket in self.layout.buckets]
        self._queue: list[tuple[int, int]] = []  # urgency and number of buckets to be started
        self._in_flight: list[int] = []  # buckets
        self._started = 0  # buckets of this step
        self._hooks = self._bind() if self.is_torch and not self.is_server else []
        self._open, self._updating, self._served = True, False, False

    @property
    def rank(self) -> int:
        """The rank in `comm`; those of workers count from 0."""
        return int(self._comm.rank)

    @property
    def is_server(self) -> bool:
        """Whether this rank is a server of parameters."""
        return self._comm.rank in self.servers

    @property
    def version(self) -> int:
        """The number of workers' gradients that the parameters contain; 0 without servers."""
        return self._strategy.version

    @property
    def given_bytes(self) -> int:
        """What this worker has given to the exchange so far, after compression."""
        return self._strategy.given_bytes

    def steps(self, number: int) -> Iterator[int]:
        """The numbers of a worker's steps. On a server it blocks until all workers are done.

        Args:
            number: the steps, the same on all workers; only those of `ssp` and `asp` may differ.

        Raises:
            PeerLost: a rank has ended.
        """
        if self.is_server:
            self._serve()
        else:
            yield from range(number)

    def ready(self, tensor: int) -> None:
        """Say that a gradient in `gradients` is complete, so that its bucket may start.

        Does not block. PyTorch calls it by itself; without it `update` starts all buckets.

        Args:
            tensor: the number of the parameter.
        """
        self._require_worker("ready")
        number = self.layout.bucket_of[tensor]
        missing = self._missing[number]
        if tensor not in missing:
            found = "it is being exchanged already"
            raise UsageError(f"gradient {tensor}", found, "Call update() before the next")
        missing.remove(tensor)
        if not missing:
            first = self.layout.buckets[number].tensors.start
            heapq.heappush(self._queue, (first if self.options.priority else 0, number))
            self._start(_CREDIT if self.options.priority else len(self.layout.buckets))
        if self.exchange is not None:
            self.exchange.poll()

    def update(self, gradients: Sequence[Any] | None = None, *, wait: bool = True) -> None:
        """Make a step with the mean of the workers' gradients. Blocks.

        Args:
            gradients: this worker's, copied to `gradients`; None: they are there already.
            wait: False returns when all buckets have started; then call `need` before each use of
                a parameter.

        Raises:
            PeerLost: a rank has ended.
            TimeoutError: another rank has not answered within `GRADRED_TIMEOUT`.
            UsageError: this rank is a server.
        """
        self._require_worker("update")
        if gradients is not None:
            for own, array in zip(self.gradients, gradients, strict=True):
                np.copyto(own, array)
        for bucket in self.layout.buckets:
            for tensor in reversed(bucket.tensors):
                if tensor in self._missing[self.layout.bucket_of[tensor]]:
                    self._take(tensor)
                    self.ready(tensor)
        self._start(len(self.layout.buckets))
        self._updating = True
        if wait:
            self._finish_all()

    def need(self, tensor: int) -> None:
        """Block until a parameter has made the step of the last `update(wait=False)`.

        Args:
            tensor: the number of the parameter.
        """
        number = self.layout.bucket_of[tensor]
        if self._updating and number in self._in_flight:
            self._finish_one(number)
            self._end_if_complete()

    def finish(self) -> None:
        """Give every worker the final parameters, and free everything. Blocking and collective."""
        if not self._open:
            return
        if self.is_server:
            self._serve()
        else:
            self._finish_all()
            self._strategy.end()
            self._to_model(range(len(self._arrays)))
            if self.exchange is not None:
                self.exchange.flush()
        self._comm.Allreduce(MPI.IN_PLACE, np.zeros(1))  # no rank closes before all are done
        self._close(in_order=True)

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        elif self._open:
            self._close(in_order=False)

    # ---- making one ------------------------------------------------------------------------------

    def _agree(
        self, given: list[Any], frozen: list[Any], rule: Sgd
    ) -> tuple[list[Floats], Layout, list[Floats]]:
        """Check everything on all ranks; each raises if another one does.

        Returns the arrays to be trained, their layout, and the frozen arrays.
        """
        refusal: UsageError | None = None
        arrays: list[Floats] = []
        fixed: list[Floats] = []
        try:
            self.options.check()
            arrays, fixed = ([_array(one) for one in some] for some in (given, frozen))
            _require_own_memory([*arrays, *fixed])
            count = sum(array.size for array in arrays)
            self._check_ranks(count)
        except UsageError as error:
            refusal = error
        shapes = [[array.shape for array in some] for some in (arrays, fixed)]
        text = repr((self.options, rule, shapes))
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        everyone = self._comm.allgather((refusal and str(refusal), digest))
        if refusal is not None:
            raise refusal
        for rank, (why, others) in enumerate(everyone):
            if why is not None:
                raise UsageError("Training", f"rank {rank} refuses it ({why})", "See it")
            if others != everyone[0][1]:
                found = f"rank {rank} has other options or parameters than rank 0"
                raise UsageError("Training", found, "Pass the same on all ranks")
        options = self.options
        servers = max(1, options.server_ranks)
        layout = Layout(shapes[0], options.aggregate, options.merge_bytes, servers)
        return arrays, layout, fixed

    def _check_ranks(self, count: int) -> None:
        servers, size = self.options.server_ranks, self._comm.size
        if count < max(1, servers):
            found = f"{count} parameters for {servers} servers"
            raise UsageError("Training", found, "Pass parameters, and fewer servers")
        if size <= servers:
            found = f"{servers} of {size} ranks are servers, and no worker is left"
            raise UsageError("Training", found, "Start more ranks")

    def _views(self, vector: Floats) -> list[Floats]:
        places = map(self.layout.where, range(len(self.layout.shapes)))
        return [
            vector[where].reshape(shape)
            for where, shape in zip(places, self.layout.shapes, strict=True)
        ]

    def _begin_with_rank_zeros(self, frozen: list[Floats]) -> None:
        for array in frozen:
            same = np.ascontiguousarray(array)
            self._comm.Bcast(same)
            np.copyto(array, same)
        for view, array in zip(self.weights, self._arrays, strict=True):
            np.copyto(view, array)
        self._comm.Bcast(self._weights)
        self._to_model(range(len(self._arrays)))

    def _bind(self) -> list[Any]:
        """Let PyTorch report each gradient, and compute it in the vector if that is asked for."""
        import torch

        hooks = []
        for number, parameter in enumerate(self._given):
            if self.options.contiguous:
                parameter.data = torch.from_numpy(self.weights[number])
                parameter.grad = torch.from_numpy(self.gradients[number])

            def computed(parameter: Any, number: int = number) -> None:
                self._take(number)
                self.ready(number)

            hooks.append(parameter.register_post_accumulate_grad_hook(computed))
        return hooks

    # ---- a step ----------------------------------------------------------------------------------

    def _require_worker(self, asked: str) -> None:
        if self.is_server:
            found = f"rank {self.rank} is a server of parameters, and makes no steps"
            remedy = "Call it in `for step in training.steps(n)`, which gives a server no step"
            raise UsageError(f"Training.{asked}", found, remedy)

    def _take(self, tensor: int) -> None:
        """Copy the gradient of a PyTorch parameter to the vector, unless it is there."""
        if not self.is_torch:
            return
        gradient = self._given[tensor].grad
        own = self.gradients[tensor]
        if gradient is None:
            own[...] = 0
        elif gradient.data_ptr() != own.ctypes.data:
            np.copyto(own, gradient.detach().numpy())

    def _start(self, most: int) -> None:
        while self._queue and len(self._in_flight) < most:
            urgency, number = self._queue[0]
            if self._strategy.starts_in_order and number != self._started:
                return
            heapq.heappop(self._queue)
            self._started += 1
            self._in_flight.append(number)
            bucket = self.layout.buckets[number]
            self._strategy.start(number, bucket, self.clock, -urgency)

    def _finish_one(self, number: int) -> None:
        self._in_flight.remove(number)
        bucket = self.layout.buckets[number]
        self._strategy.finish(number, bucket, self.clock)
        self._to_model(bucket.tensors)
        if self.is_torch:
            self._forget_gradients(bucket)

    def _forget_gradients(self, bucket: Bucket) -> None:
        """Let the next backward pass begin with zeros, as it adds to what is there."""
        self._gradient[bucket.where] = 0
        for tensor in bucket.tensors:
            parameter, own = self._given[tensor], self.gradients[tensor]
            if parameter.grad is not None and parameter.grad.data_ptr() != own.ctypes.data:
                parameter.grad = None

    def _finish_all(self) -> None:
        # In the order of the buckets, as on all workers: some wait for peers within a bucket.
        for number in sorted(self._in_flight):
            self._finish_one(number)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._in_flight or not self._updating:
            return
        self._updating = False
        if self._strategy.end_step(self.clock):
            self._to_model(range(len(self._arrays)))
        self.clock += 1
        self._started = 0
        self._missing = [set(bucket.tensors) for bucket in self.layout.buckets]

    def _to_model(self, tensors: range) -> None:
        """Copy parameters to the model, unless they are the model's own."""
        for number in tensors:
            parameter, own = self._given[number], self.weights[number]
            if not self.is_torch:
                np.copyto(parameter, own)
            elif parameter.data_ptr() != own.ctypes.data:
                np.copyto(parameter.detach().numpy(), own)

    # ---- servers, and the end --------------------------------------------------------------------

    def _serve(self) -> None:
        if self._served:
            return
        self._served = True
        assert self.exchange is not None
        options = self.options
        store = Store(self.workers, self._rule, options.bound, together=options.row.together)
        own = self._comm.rank - len(self.workers)
        for index, piece in enumerate(self.layout.pieces):
            if piece.server == own:
                store.create(index, self._weights[piece.where].copy())
        Server(self.exchange, store, self.layout.pieces, self.workers, self._compressor).serve()

    def _close(self, *, in_order: bool) -> None:
        self._open = False
        for hook in self._hooks:
            hook.remove()
        if self.exchange is not None:
            self.exchange.transport.close(in_order=in_order)
        if in_order:
            self._operations.free()


def _is_tensor(parameter: Any) -> bool:
    return hasattr(parameter, "detach")


def _require_own_memory(arrays: Sequence[Floats]) -> None:
    """Raise UsageError if two parameters share memory: both would be trained there."""
    by_address = sorted(range(len(arrays)), key=lambda number: arrays[number].ctypes.data)
    for place, number in enumerate(by_address):
        for other in by_address[place + 1 :]:
            if not np.may_share_memory(arrays[number], arrays[other]):
                break
            if np.shares_memory(arrays[number], arrays[other]):
                first, second = sorted((number, other))
                found = f"parameter {second} is in the memory of parameter {first}"
                raise UsageError("Training", found, "Pass each array once")


def _array(parameter: Any) -> Floats:
    """A parameter as a NumPy array in the same memory."""
    found = "it is not a float32 array in host memory"
    remedy = "Pass NumPy arrays or PyTorch tensors of float32"
    if _is_tensor(parameter):
        if parameter.device.type != "cpu":
            raise UsageError("a parameter", f"it is on {parameter.device}", remedy)
        parameter = parameter.detach().numpy()
    if not isinstance(parameter, np.ndarray) or parameter.dtype != np.float32:
        raise UsageError("a parameter", found, remedy)
    if not parameter.flags.writeable:
        found = "its array is read-only, and training changes it"
        raise UsageError("a parameter", found, "Pass a copy")
    return parameter
