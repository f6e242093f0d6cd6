"""A backend of torch.distributed, which `init_process_group("gradred")` makes.

Operations of a group go to named operations (gradred.named) under their number in the group, so any
thread may wait for any of them, and ranks whose tensors differ get an error. The ranks are those of
an MPI, or of torchrun, torch.multiprocessing and the like: then they share memory, and no MPI is
begun.
"""

from __future__ import annotations

import datetime
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from mpi4py import MPI

from gradred import _rank
from gradred.comm import Comm
from gradred.errors import TimeoutError, UsageError, explain  # noqa: A004
from gradred.named import NamedOperations
from gradred.torch.messages import Messages, OfGloo, OfMpi
from gradred.torch.operations import DTYPES, described
from gradred.without_mpi import connect

Tensor: TypeAlias = torch.Tensor
ReduceOp = dist.ReduceOp

# Where gradred's name is not torch's in small letters.
_OTHER_NAMES = {"AVG": "sum", "PRODUCT": "prod"}


# Older PyTorch keeps what Python has made of a Work no longer than Python does, and C++ then waits
# for ever for one that it has just been given. So the last ones stay.
_FORGETS_PYTHON = torch.torch_version.TorchVersion(torch.__version__) < (2, 13)
_last: deque[GradredWork] = deque(maxlen=16)


class GradredWork(dist.Work):
    """An operation in flight. Errors come out of `wait` and of the future.

    Args:
        requests: all of which have to end.
        finish: puts the results where they belong; called once, by whoever sees the end first.
        result: what the future gives.
        limit: seconds that `wait` waits at most unless it is told otherwise.
    """

    def __init__(
        self,
        requests: Sequence[Any],
        finish: Callable[[], None],
        result: list[Tensor],
        limit: float | None,
    ) -> None:
        super().__init__()
        self._requests, self._result, self._limit = list(requests), result, limit
        self._finish: Callable[[], None] | None = finish
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._future: Any = None
        if _FORGETS_PYTHON:
            _last.append(self)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Block until it has ended; raises what ended it, and gradred.TimeoutError."""
        seconds = self._limit
        if timeout is not None and timeout.total_seconds() > 0:
            seconds = timeout.total_seconds()
        for request in self._requests:
            try:
                request.wait(seconds)
            except TimeoutError:
                raise
            except Exception as error:
                self._failure = self._failure or error
        self._settle()
        if self._failure is not None:
            raise self._failure
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def _settle(self) -> None:
        """All requests have ended."""
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None and self._failure is None:
                finish()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return all(request.done() for request in self._requests)

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """What ended it; None before the end and where it ended well."""
        if self.is_completed():
            try:
                self.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> list[Tensor]:
        """The tensors that hold the result."""
        return self._result

    def get_future(self) -> Any:
        """A future with the tensors; its callbacks are called off the thread that drives."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = torch.futures.Future()
        self._chain(0)
        return self._future

    def _chain(self, index: int) -> None:
        if index < len(self._requests):
            self._requests[index].add_done_callback(lambda _: self._chain(index + 1))
            return
        try:
            self.wait()
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(self._result)


class ProcessGroupGradred(dist.ProcessGroup):
    """The ranks of a group of torch.distributed, as a communicator.

    Args:
        comm: whose ranks they are, in the same order.
        messages: from rank to rank.
        timeout: of operations that are waited for without one.
    """

    def __init__(self, comm: Comm, messages: Messages, timeout: datetime.timedelta | None) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm = comm
        self._own_rank, self._ranks = comm.Get_rank(), comm.Get_size()
        self._engine = NamedOperations(comm)
        self._messages = messages
        self._numbers, self._numbering = 0, threading.Lock()
        self._limit = None if timeout is None else timeout.total_seconds()

    def getBackendName(self) -> str:  # noqa: N802 (torch's names)
        """Its name."""
        return "gradred"

    def _get_backend_name(self) -> str:
        return "gradred"

    @property
    def _device_types(self) -> list[torch.device]:
        """Of tensors that it serves."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        """This group: it has no other for its device."""
        return self if device.type == "cpu" else super()._get_backend(device)

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether it has memory of its own for tensors, which would not be faster."""
        return False

    @property
    def supports_splitting(self) -> bool:
        """Groups are made anew."""
        return False

    @property
    def pg_name(self) -> str:
        """The name that torch gave it."""
        return str(dist.distributed_c10d._world.pg_names.get(self, "gradred"))

    @property
    def group_name(self) -> str:
        """Likewise."""
        return self.pg_name

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Of operations from now on."""
        self._limit = timeout.total_seconds()

    def abort(self) -> None:
        """Operations of all ranks in flight end with an error."""
        self._engine.close()

    def shutdown(self) -> None:
        """Likewise."""
        self._engine.close()

    # ---- submitting ----------------------------------------------------------------------------

    def _submit(self, kind: str, arrays: Any, held: Any, **how: Any) -> Any:
        with self._numbering:
            self._numbers += 1
            name = f"operation {self._numbers} of {self.pg_name}"
            return self._engine.submit(kind, name, arrays, held=held, **how)

    def _work(
        self, requests: Sequence[Any], finish: Callable[[], None], result: list[Tensor]
    ) -> GradredWork:
        return GradredWork(requests, finish, result, self._limit)

    def _reduction(self, op: Any, tensor: Tensor) -> dict[str, Any]:
        if op == ReduceOp.PREMUL_SUM:
            return {"op": "sum", "prescale": float(_factor_of(op))}
        for name, known in ReduceOp.RedOpType.__members__.items():
            if op == known and name not in ("PREMUL_SUM", "UNUSED"):
                scale = {"postscale": 1.0 / self._ranks} if name == "AVG" else {}
                return {"op": _of_bool(_OTHER_NAMES.get(name, name.lower()), tensor), **scale}
        found = f"there is no reduction {op}"
        raise UsageError(explain("all_reduce", found, "Use SUM, AVG, MIN, MAX or PRODUCT"))

    # ---- collectives ---------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> GradredWork:
        """Reduce in place, over all ranks."""
        op = _op_of(opts)
        views = [_real(tensor) for tensor in _list(tensors)]
        arrays = [array for view in views for array in described(view, view, "all_reduce")]
        request = self._submit("allreduce", arrays, views, **self._reduction(op, views[0]))
        return self._work([request], lambda: None, _list(tensors))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> GradredWork:
        """Several tensors as one operation."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> GradredWork:
        """The root's tensor, in place."""
        root = getattr(opts, "rootRank", opts if isinstance(opts, int) else 0)
        parts = [_Dense(tensor) for tensor in _list(tensors)]
        arrays = [array for part in parts for array in part.described("broadcast")]
        request = self._submit("broadcast", arrays, parts, root=root)
        return self._work([request], lambda: _put_back(parts), _list(tensors))

    def barrier(self, opts: Any = None, timeout: Any = None) -> GradredWork:
        """All ranks have come here."""
        return self._work([self._submit("barrier", [], None)], lambda: None, [])

    def _gather(
        self,
        tensor: Tensor,
        put: Callable[[Tensor], None],
        out: Any,
        target: Tensor | None = None,
    ) -> GradredWork:
        """All ranks' tensors, of one shape, behind each other: in `target` if they can be."""
        flat = tensor.detach().contiguous().reshape(-1)
        data = _bytes(flat)
        place = _place_of(target, flat.dtype)
        arrays = [(data.data_ptr(), place[0], "uint8", (1, data.numel()), place[1])]
        request = self._submit("allgather", arrays, (data, target))

        def finish() -> None:
            if not flat.numel():
                put(flat)
            elif made := request.outputs:
                put(torch.from_numpy(made[0]).view(flat.dtype))

        return self._work([request], finish, out)

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> GradredWork:
        """Each rank's tensor, in a list on all ranks."""
        targets = outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs

        def put(all_of_it: Tensor) -> None:
            begin = 0
            for target in targets:
                target.copy_(all_of_it[begin : begin + target.numel()].view(target.shape))
                begin += target.numel()

        tensor = _list(inputs)[0]
        if any(target.numel() != tensor.numel() for target in targets):
            return self._uneven_allgather(targets, tensor)
        return self._gather(tensor, put, [list(targets)])

    def _uneven_allgather(self, targets: Sequence[Tensor], tensor: Tensor) -> GradredWork:
        """Tensors of other shapes on other ranks: a broadcast of each."""
        requests, parts = [], []
        for root, target in enumerate(targets):
            if root == self._own_rank:
                target.copy_(tensor)
            part = _Dense(target)
            parts.append(part)
            arrays = part.described("all_gather")
            requests.append(self._submit("broadcast", arrays, part, root=root))
        return self._work(requests, lambda: _put_back(parts), [list(targets)])

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> GradredWork:
        """All ranks' tensors behind each other, in one."""

        def put(all_of_it: Tensor) -> None:
            output.copy_(all_of_it.view(output.shape))

        return self._gather(tensor, put, [output], output)

    def _allgather_base(
        self, output: Tensor, tensor: Tensor, opts: Any = None, timeout: Any = None
    ) -> GradredWork:
        return self.all_gather_single(output, tensor, opts)

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> GradredWork:
        """Several of them."""
        return self._together(
            [self.all_gather_single(*pair) for pair in zip(outputs, inputs, strict=True)]
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> GradredWork:
        """Several, each into a list."""
        found = []
        for index, tensor in enumerate(inputs):
            found.append(self.allgather([[row[index] for row in outputs]], [tensor]))
        return self._together(found)

    def _together(self, works: Sequence[GradredWork]) -> GradredWork:
        requests = [request for work in works for request in work._requests]
        result = [tensor for work in works for tensor in work.result()]

        def finish() -> None:
            for work in works:
                work._settle()

        return self._work(requests, finish, result)

    def reduce_scatter_single(
        self, output: Tensor, tensor: Tensor, opts: Any = None
    ) -> GradredWork:
        """The sum of which each rank gets its part."""
        op = _op_of(opts)
        view = _real(tensor.detach().contiguous())
        flat = view.reshape(self._ranks, -1)
        place = _place_of(_real(output), flat.dtype)
        arrays = [(flat.data_ptr(), place[0], DTYPES[flat.dtype], tuple(flat.shape), place[1])]
        held = (flat, output)
        request = self._submit("reducescatter", arrays, held, **self._reduction(op, flat))

        def finish() -> None:
            if request.outputs and output.numel():
                part = torch.from_numpy(request.outputs[0]).view(flat.dtype)
                _real(output).copy_(part.view(_real(output).shape))

        return self._work([request], finish, [output])

    def _reduce_scatter_base(
        self, output: Tensor, tensor: Tensor, opts: Any = None, timeout: Any = None
    ) -> GradredWork:
        return self.reduce_scatter_single(output, tensor, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> GradredWork:
        """Several of them."""
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.reduce_scatter_single(*pair, opts) for pair in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> GradredWork:
        """The sums of lists of tensors, of which each rank gets its own."""
        output = _list(outputs)[0]
        parts = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
        if all(part.numel() == output.numel() for part in parts):
            return self.reduce_scatter_single(output, torch.stack([*parts]), opts)
        work = self.allreduce([part.clone() for part in parts], opts)
        sums = work.result()
        return self._work(work._requests, lambda: output.copy_(sums[self._own_rank]), [output])

    def reduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> GradredWork:
        """The root gets the sum; the others' tensors stay."""
        tensor = _list(tensors)[0]
        sums = tensor.detach().clone(memory_format=torch.contiguous_format)
        work = self.allreduce([sums], opts)

        def finish() -> None:
            if self._own_rank == opts.rootRank:
                tensor.copy_(sums)

        return self._work(work._requests, finish, [tensor])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """The root gets each rank's tensor."""
        flat = _list(inputs)[0].detach().contiguous().reshape(-1)
        data = _bytes(flat).reshape(1, -1)
        targets = outputs[0] if outputs and isinstance(outputs[0], (list, tuple)) else outputs
        is_root = self._own_rank == opts.rootRank
        splits = [int(rank == opts.rootRank) for rank in range(self._ranks)]
        request = self._swap(data, splits, None)

        def finish() -> None:
            if is_root and data.numel():
                rows = torch.from_numpy(request.outputs[0]).view(flat.dtype)
                for target, part in zip(targets, rows.chunk(self._ranks), strict=False):
                    target.copy_(part.view(target.shape))

        return self._work([request], finish, list(targets) if is_root else [])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Each rank gets one of the root's tensors."""
        output = _list(outputs)[0]
        whole = torch.empty((0, *output.shape), dtype=output.dtype)
        splits = [0] * self._ranks
        if self._own_rank == opts.rootRank:
            parts = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
            whole = torch.stack([part.detach().contiguous() for part in parts])
            splits = [1] * self._ranks
        each = output.numel() * output.itemsize
        data = _bytes(whole.reshape(-1)).reshape(len(whole), each)
        return self._result_of_swap(self._swap(data, splits, output), output)

    def _swap(self, data: Tensor, splits: Sequence[int], target: Tensor | None) -> Any:
        """An alltoall of rows of bytes, into `target` if they can be there."""
        place = (0, 0) if target is None else _place_of(target, target.dtype)
        arrays = [(data.data_ptr(), place[0], "uint8", tuple(data.shape), place[1])]
        return self._submit("alltoall", arrays, (data, target), splits=list(splits))

    def _result_of_swap(self, request: Any, output: Tensor) -> GradredWork:
        def finish() -> None:
            if request.outputs and output.numel():
                part = torch.from_numpy(request.outputs[0]).view(output.dtype)
                output.copy_(part.view(output.shape))

        return self._work([request], finish, [output])

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Any = None,
        input_splits: Any = None,
        opts: Any = None,
    ) -> GradredWork:
        """Each rank gets its rows of every rank's tensor."""
        rows = list(input_splits or []) or _even(tensor.shape[0], self._ranks)
        data = _bytes(tensor.detach().contiguous().reshape(-1))
        each = data.numel() // tensor.shape[0] if tensor.shape[0] else 0
        data = data.reshape(tensor.shape[0], each)
        target = output if output.dtype is tensor.dtype else None
        return self._result_of_swap(self._swap(data, rows, target), output)

    def alltoall_base(
        self,
        output: Tensor,
        tensor: Tensor,
        outs: Any,
        ins: Any,
        opts: Any = None,
        timeout: Any = None,
    ) -> GradredWork:
        """By its older name."""
        return self.all_to_all_single(output, tensor, outs, ins, opts)

    def alltoall(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> GradredWork:
        """Each rank gets one tensor of every rank's list."""
        flat = [tensor.detach().contiguous().reshape(-1) for tensor in inputs]
        whole = torch.cat(flat)
        made = torch.empty(sum(t.numel() for t in outputs), dtype=whole.dtype)
        work = self.all_to_all_single(made, whole, None, [one.numel() for one in flat])

        def finish() -> None:
            work._settle()
            begin = 0
            for target in outputs:
                target.copy_(made[begin : begin + target.numel()].view(target.shape))
                begin += target.numel()

        return self._work(work._requests, finish, list(outputs))

    # ---- messages ------------------------------------------------------------------------------

    def send(self, tensors: Any, dst: int, tag: int = 0) -> GradredWork:
        """A message to one rank."""
        data = _bytes(_list(tensors)[0].detach().contiguous().reshape(-1))
        return self._work([self._messages.send(data, dst, tag)], lambda: None, _list(tensors))

    def _receive(self, tensors: Any, source: int | None, tag: int) -> GradredWork:
        tensor = _list(tensors)[0]
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        message = self._messages.receive(_bytes(flat), source, tag)
        work = self._work([message], lambda: tensor.copy_(flat.view(tensor.shape)), _list(tensors))
        work._source_rank = message.source
        return work

    def recv(self, tensors: Any, src: int, tag: int = 0) -> GradredWork:
        """A message from one rank."""
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> GradredWork:
        """A message from any rank."""
        return self._receive(tensors, None, tag)


class _Dense:
    """A tensor as bytes: where it lies if it can be, else a copy that is put back."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        detached = tensor.detach()
        self.dense = detached if detached.is_contiguous() else detached.contiguous()

    def described(self, asked: str) -> list[Any]:
        """For the engine."""
        del asked
        data = _bytes(self.dense.reshape(-1))
        return [(data.data_ptr(), data.data_ptr(), "uint8", (data.numel(),))]

    def put_back(self) -> None:
        """After the end."""
        if self.dense.data_ptr() != self.tensor.data_ptr():
            self.tensor.detach().copy_(self.dense)


def _put_back(parts: Sequence[_Dense]) -> None:
    for part in parts:
        part.put_back()


def _bytes(flat: Tensor) -> Tensor:
    if flat.device.type != "cpu":
        found = f"the tensor is on {flat.device}"
        raise UsageError(explain("a gradred process group", found, "Use cpu:gradred,cuda:nccl"))
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def _place_of(target: Tensor | None, dtype: torch.dtype) -> tuple[int, int]:
    """Address and bytes of what can take a result as it is; zeros where there is none."""
    if target is None or target.device.type != "cpu" or target.dtype is not dtype:
        return 0, 0
    if not target.is_contiguous():
        return 0, 0
    return target.data_ptr(), target.numel() * target.itemsize


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _op_of(opts: Any) -> Any:
    if opts is None:
        return ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def _factor_of(op: Any) -> float:
    return float(op.__getstate__()[1])


def _of_bool(name: str, tensor: Tensor) -> str:
    """Of bool a sum is "any", and a product "all", as in torch."""
    if tensor.dtype is not torch.bool:
        return name
    return {"sum": "lor", "prod": "land"}.get(name, name)


def _even(rows: int, ranks: int) -> list[int]:
    each, rest = divmod(rows, ranks)
    if rest:
        found = f"{rows} rows do not divide among {ranks} ranks"
        raise UsageError(explain("all_to_all_single", found, "Pass split sizes"))
    return [each] * ranks


def create(options: Any, _backend_options: Any = None) -> ProcessGroupGradred:
    """What `init_process_group` and `new_group` call on the members of a group.

    Raises:
        gradred.UsageError: the ranks of torch are not those of the MPI; without an MPI: they share
            no memory.
    """
    _rank.spare_workers()
    size = options.group_size
    members = list(options.global_ranks_in_group) or list(range(size))
    if MPI.Is_initialized() and (MPI.COMM_WORLD.Get_size() > 1 or size == 1):
        comm = _comm_of_mpi(members, options.group_rank)
        return ProcessGroupGradred(comm, OfMpi(comm.Dup()), options.timeout)
    store = _unused_part(options)
    comm = connect(options.group_rank, size, _allgather_by(store, options.group_rank, size))
    by_gloo = dist.PrefixStore("messages", store)
    messages = OfGloo(by_gloo, options.group_rank, size, options.timeout)
    return ProcessGroupGradred(comm, messages, options.timeout)


_made: Counter[str] = Counter()


def _unused_part(options: Any) -> dist.Store:
    """Of the group's store, where a group of this name may have left its keys."""
    _made[options.group_id] += 1
    return dist.PrefixStore(f"gradred {_made[options.group_id]}", options.store)


def _comm_of_mpi(members: Sequence[int], group_rank: int) -> Comm:
    world = MPI.COMM_WORLD
    asked = "a process group of gradred"
    if max(members) >= world.Get_size():
        found = f"torch counts {max(members) + 1} ranks or more, the MPI {world.Get_size()}"
        remedy = "Start the program by gradred run -np N"
        raise UsageError(explain(asked, found, remedy))
    if members[group_rank] != world.Get_rank():
        found = f"torch's rank {members[group_rank]} is the MPI's {world.Get_rank()}"
        remedy = "Let gradred run set RANK, or use the MPI's rank"
        raise UsageError(explain(asked, found, remedy))
    return Comm(world.Create_group(world.Get_group().Incl(members)))


def _allgather_by(store: dist.Store, rank: int, size: int) -> Callable[[bytes], list[bytes]]:
    turns = itertools.count()

    def allgather(mine: bytes) -> list[bytes]:
        turn = next(turns)
        store.set(f"{turn}/{rank}", mine)
        return [store.get(f"{turn}/{other}") for other in range(size)]

    return allgather
