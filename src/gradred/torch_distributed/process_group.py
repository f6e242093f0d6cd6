"""The process group of torch.distributed that `init_process_group("gradred")` creates.

The group submits its operations as named operations (gradred.named), under their number in the
group. So any thread may wait for any operation, and ranks whose tensors differ get an error.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from gradred import _core
from gradred.errors import Error, UsageError
from gradred.memory import empty
from gradred.tensors import even_splits
from gradred.torch_distributed.backend import CALLED_BY_TORCH, GradredBackend
from gradred.torch_distributed.callbacks import Numbers, numbers_here, running
from gradred.torch_distributed.compiling import left_alone
from gradred.torch_distributed.connecting import Connected, NotYet
from gradred.torch_distributed.in_flight import after_writes, note
from gradred.torch_distributed.methods import METHODS
from gradred.torch_distributed.monitored import MonitoredBarrier
from gradred.torch_distributed.other_devices import OtherDevices, handing_on
from gradred.torch_distributed.profiling import is_profiled, shown
from gradred.torch_distributed.sparse import SparseSum
from gradred.torch_distributed.tensors import (
    DenseCopy,
    ResultPlace,
    as_bytes,
    as_list,
    as_moved,
    dense,
    put,
    put_back,
    put_behind,
    readable,
    reducible,
    require_fit,
    require_one_for_each,
    require_one_root,
    require_rows,
)
from gradred.torch_distributed.work import GradredWork, Tensor, all_of, together
from gradred.torch_tensors import (
    DTYPES,
    SERVED,
    described,
    increment_versions,
    require_tensor,
)

ReduceOp = dist.ReduceOp
_NO_TIME = datetime.timedelta(0)  # options without a time limit have less

# Names that are not torch's name in lower case.
_OTHER_NAMES = {"PRODUCT": "prod"}
_REDUCTIONS = {
    hash(known): _OTHER_NAMES.get(name, name.lower())
    for name, known in ReduceOp.RedOpType.__members__.items()
    if name not in ("PREMUL_SUM", "UNUSED")
}

_Collective = TypeVar("_Collective", bound=Callable[..., Any])


def _collective(method: _Collective) -> _Collective:
    """Decorate a collective: it takes all of torch's forms, and gets the first one of `METHODS`.

    If this rank's arguments are invalid, all ranks get a UsageError.
    """
    kind, about = method.__name__, METHODS[method.__name__]
    are_several = kind.endswith("_coalesced")  # operations, in flight at once
    method = shown(about.title, about.inputs)(method)

    @functools.wraps(method)
    def call(self: ProcessGroupOfRanks, *args: Any, **kwargs: Any) -> Any:
        numbers = numbers_here(self, self._numbers)
        before = numbers.taken
        try:
            given = about.first(args, kwargs)
            if self._coalesced is None and getattr(given[-1], "asyncOp", True) is False:
                # The program waits for it now. So the submission waits, and no signal handler of
                # the program's runs while the tensors are read.
                limit = 0.0 if are_several else self._limit_of(given[-1])
                work = _core.call_with_waits(limit, method, self, *given)
            else:
                work = method(self, *given)
                note(work)
        except Exception as error:
            if numbers.taken == before:  # nothing has been submitted
                self._refuse(error)
            if type(error) is ValueError:  # what Horovod programs get for a tensor with gaps
                raise UsageError(str(error)) from error
            raise
        work.kind = kind
        return work if self._coalesced is None else self._noted(work)

    return cast("_Collective", call)


@left_alone
class ProcessGroupOfRanks(dist.ProcessGroup):
    """A process group of torch.distributed over the ranks of one communicator.

    Args:
        made: carries out the group's operations, and no others.
        timeout: time limit of futures, and of waits without a timeout.
    """

    def __init__(self, made: Connected, timeout: datetime.timedelta | None) -> None:
        if CALLED_BY_TORCH:
            super().__init__(made.store, made.engine.rank, made.engine.size)
        else:
            super().__init__(made.engine.rank, made.engine.size)
        self._name: str | None = None
        self.other_devices = OtherDevices(self, timeout)
        self._adopt(made)
        self._limit = None if timeout is None else timeout.total_seconds()
        self.backend: GradredBackend | None = None
        if CALLED_BY_TORCH:
            self.backend = GradredBackend(self, timeout or dist.default_pg_timeout)
            custom = self.BackendType.CUSTOM
            for device in self._device_types:
                self._register_backend(device, custom, self.backend)
            self._set_default_backend(custom)
        self._store = made.store

    if not CALLED_BY_TORCH:  # then torch asks the group itself
        supports_time_estimate = False

        def get_group_store(self) -> dist.Store:
            """The store of torch that only this group uses."""
            return self._store

    def _adopt(self, made: Connected) -> None:
        """Carry out all later operations by `made`."""
        engine = made.engine
        self._own_rank, self._ranks = engine.rank, engine.size
        self._engine, self._messages = engine, made.messages
        self._monitored = MonitoredBarrier(
            dist.PrefixStore("monitored", made.store),
            engine.rank,
            engine.ranks,
            engine.look_for_lost,
        )
        # Older PyTorch shuts down only its own groups.
        self._free = weakref.finalize(self, made.free)
        self._free.atexit = False
        self._numbers = Numbers()
        self._has_left = False
        self._coalesced: list[GradredWork] | None = None  # those since `_start_coalescing`
        self._title: str | None = None  # the group's name; None: the core must not reduce at once

    def getRank(self) -> int:  # noqa: N802 (torch's names)
        """This rank's number in the group."""
        return self._own_rank

    def getSize(self) -> int:  # noqa: N802
        """The number of ranks."""
        return self._ranks

    rank, size = getRank, getSize  # for Python; torch's C++ code calls the others

    def merge_remote_group(self, *_: object, **__: object) -> NoReturn:
        """Refuse what torch would carry out in parts that this group lacks."""
        found = "gradred's groups are made by functions of torch.distributed"
        raise UsageError("a new group of this one", found, "Use dist.new_group or new_subgroups")

    def getBackendName(self) -> str:  # noqa: N802 (torch's names)
        """The name of the backend."""
        return "gradred"

    _get_backend_name = getBackendName

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices that the group serves. The first one is torch's default for the group."""
        kinds = SERVED if torch.cuda.is_available() else ("cpu",)
        devices = [torch.device(kind) for kind in kinds]
        return [one for one in devices if self.other_devices.backend_for(one) is None]

    def _get_backend(self, device: torch.device) -> Any:
        """The backend of a device: gradred's, or another one that the program requested.

        gradred's is this group itself where PyTorch calls no `Backend` in Python.
        """
        own: Any = self.backend or self
        if self.other_devices.is_being_made():
            return own
        other = self.other_devices.group_for(device)
        if other is not None:
            return other._get_backend(device)
        return own if device.type in SERVED else super()._get_backend(device)

    get_backend = _get_backend

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` supports the device."""
        return bool(device.type == "cpu")

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a tensor of `size` elements as a shared array (`gradred.empty`).

        Pages are allocated when they are first written. FSDP2 uses this for its buffers with
        `set_allocate_memory_from_process_group_for_comm`.
        """
        if device.type != "cpu":
            found = f"the device is {device}"
            raise UsageError("allocate_tensor", found, "Ask for memory of the host")
        return torch.from_numpy(empty(size * dtype.itemsize, np.uint8)).view(dtype)

    @property
    def supports_splitting(self) -> bool:
        """Always False: torch creates new groups instead of splitting this one."""
        return False

    @property
    def pg_name(self) -> str:
        """The name that torch gave to the group."""
        if self._name is None:  # torch registers the name after it has made the group
            self._name = dist.distributed_c10d._world.pg_names.get(self)
        return "gradred" if self._name is None else str(self._name)

    group_name = pg_name

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the time limit of later operations."""
        self._limit = timeout.total_seconds()

    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        self.set_timeout(timeout)

    def _register_on_completion_hook(self, _hook: object) -> NoReturn:
        asked, found = "_register_on_completion_hook", "gradred has no such hook"
        raise UsageError(asked, found, "Add callbacks to works: work.get_future().then(...)")

    def abort(self) -> None:
        """Make operations in flight fail on all ranks."""
        self._has_left = True
        self._engine.close()

    def shutdown(self) -> None:
        """Make operations in flight fail on all ranks, and free the group.

        All ranks have to call it. It returns immediately.
        """
        self._has_left = True
        self._free()

    @property
    def has_left(self) -> bool:
        """Whether this rank has called `abort` or `shutdown`."""
        return self._has_left

    def look_for_lost(self) -> None:
        """Raise PeerLost if a rank of the group has ended."""
        if not isinstance(self._engine, NotYet):
            self._engine.look_for_lost("the group's state")

    # ---- submitting ----------------------------------------------------------------------------

    def _submit(self, kind: str, arrays: Any, held: Any, **how: Any) -> Any:
        submit = self._engine.submit
        return numbers_here(self, self._numbers).submit(
            lambda name, counter, number: submit(
                kind, name, arrays, held=held, counter=counter, number=number, **how
            ),
            self.pg_name,
        )

    def _refuse(self, error: Exception) -> None:
        """Make the other ranks' next operation fail, as this rank's arguments were invalid."""
        with contextlib.suppress(Error):  # the group has failed on all ranks
            self._submit("refusal", [], None, why_refused=str(error))

    def _submit_plain(self, tensor: Tensor, how: dict[str, Any]) -> Any:
        """Submit an allreduce in place. None: the tensor needs the checks of `allreduce`."""
        submit, op, before = self._engine.submit_tensor, how["op"], how.get("prescale", 1.0)
        return numbers_here(self, self._numbers).submit(
            lambda name, *number: submit(name, tensor, tensor, op, before, 1.0, 0, *number),
            self.pg_name,
        )

    def _work(
        self,
        requests: Sequence[Any],
        finish: Callable[[], None] | None,
        result: list[Any],
        opts: Any,
        placed: bool = False,
        written: Sequence[Tensor] | None = None,
    ) -> GradredWork:
        """Make a `GradredWork` with the options' time limit, and tell autograd of the writes.

        `written` are the tensors that the operation writes. None: those of `result`.
        """
        increment_versions(result if written is None else written)
        return GradredWork(requests, finish, result, self._limit_of(opts), placed)

    def _limit_of(self, opts: Any) -> float | None:
        """The time limit of an operation in seconds: that of its options, or of the group."""
        own = opts.timeout
        return own.total_seconds() if own > _NO_TIME else self._limit

    def _reduction(self, op: Any, tensor: Tensor) -> dict[str, Any]:
        if known := _REDUCTIONS.get(hash(op)):  # comparing operations takes longer
            return {"op": _of_bool(known, tensor)}
        if op == ReduceOp.PREMUL_SUM:
            return {"op": "sum", "prescale": float(op.__getstate__()[1])}
        found = f"there is no reduction {op}"
        raise UsageError("all_reduce", found, "Use SUM, AVG, MIN, MAX or PRODUCT")

    def _get_sequence_number_for_group(self) -> int:
        """How many operations of this group the program has started on this rank."""
        return self._numbers.taken

    def _set_sequence_number_for_group(self) -> None:
        """Nothing is left to do: all ranks count from 0."""

    def _start_coalescing(self, _device: torch.device) -> None:
        """Start a part of the program whose operations have one work; see `_end_coalescing`."""
        self._coalesced, self._title = [], None

    def _noted(self, work: GradredWork) -> GradredWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _end_coalescing(self, _device: torch.device) -> GradredWork:
        """Return one work for all operations since `_start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        work = all_of(works, self._limit)
        work.kind = "coalesced"
        return work

    # ---- collectives ---------------------------------------------------------------------------

    @_collective
    def allreduce(self, tensors: Any, opts: Any) -> GradredWork:
        """Reduce over all ranks, in place."""
        given = as_list(tensors)
        how = self._reduction(opts.reduceOp, given[0])
        request = self._submit_plain(given[0], how) if len(given) == 1 else None
        if request is None:
            if len(given) == 1 and given[0].layout is torch.sparse_coo:
                return self._sparse_allreduce(given[0], how["op"], opts)
            views = [reducible(tensor, how["op"], "all_reduce") for tensor in given]
            arrays = [described(view, view, "all_reduce") for view in views]
            request = self._submit("allreduce", arrays, views, **how)
        return self._work(
            [request], None, given, opts, written=[]
        )  # the engine has reported it to autograd

    allreduce_coalesced = allreduce

    def _sparse_allreduce(self, tensor: Tensor, op: str, opts: Any) -> GradredWork:
        total = SparseSum(tensor, op)
        request = self._submit("allgather", total.described(), total.parts)

        def finish() -> None:
            total.put(request.outputs, request.rows)

        return self._work([request], finish, [tensor], opts)

    @_collective
    def broadcast(self, tensors: Any, opts: Any) -> GradredWork:
        """Broadcast the root's tensors, in place."""
        given, root = as_list(tensors), opts.rootRank
        is_root = root == self._own_rank
        after_writes([tensor for tensor in given if not tensor.is_contiguous()])
        parts = [DenseCopy(tensor, "broadcast", is_written=not is_root) for tensor in given]
        arrays = [part.described() for part in parts]
        request = self._submit("broadcast", arrays, parts, root=root)
        finish = None if is_root else functools.partial(put_back, parts)
        return self._work([request], finish, given, opts, written=[] if is_root else given)

    @_collective
    def barrier(self, opts: Any) -> GradredWork:
        """Start a barrier."""
        return self._work([self._submit("barrier", [], None)], None, [], opts)

    def wait_monitored(self, seconds: float | None, wait_all_ranks: bool = False) -> None:
        """`torch.distributed.monitored_barrier`. Blocks."""
        limit = self._limit if seconds is None else seconds
        self._monitored.wait(math.inf if limit is None else limit, wait_all_ranks)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """`torch.distributed.monitored_barrier` as a method of the group. Blocks."""
        self.wait_monitored(None if timeout is None else timeout.total_seconds(), wait_all_ranks)

    def _gather(
        self,
        tensor: Tensor,
        put_whole: Callable[[Tensor], None],
        out: Any,
        opts: Any,
        target: Tensor | None = None,
    ) -> GradredWork:
        """Gather all ranks' tensors of one shape, in `target` if the engine can write there."""
        flat = _contiguous(tensor, "all_gather").reshape(-1)
        data, dtype = as_moved(flat)
        result = ResultPlace(target, flat.dtype)
        array = result.of(data, dtype, (1, data.numel()), "all_gather")
        request = self._submit("allgather", [array], (data, target))

        def finish() -> None:
            if not flat.numel():
                put_whole(flat)
            elif made := request.outputs:
                put_whole(torch.from_numpy(made[0]).view(flat.dtype))

        return self._work([request], finish, out, opts, placed=target is not None)

    @_collective
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Gather all ranks' tensors in a list on all ranks."""
        found = outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs
        targets = [dense(target, "all_gather") for target in found]
        tensor = as_list(inputs)[0]
        require_one_for_each(targets, self._ranks, "all_gather")
        require_fit(targets[self._own_rank], tensor, 1, "all_gather")
        if any(target.numel() != tensor.numel() for target in targets):
            return self._uneven_allgather(targets, tensor, list(found), opts)
        return self._gather(tensor, lambda whole: put_behind(whole, targets), list(found), opts)

    def _uneven_allgather(
        self, targets: Sequence[Tensor], tensor: Tensor, out: list[Any], opts: Any
    ) -> GradredWork:
        """Gather tensors of different shapes by one broadcast per rank."""
        after_writes([tensor, *targets])
        targets[self._own_rank].copy_(readable(tensor, "all_gather"))
        parts = [DenseCopy(target, "all_gather") for target in targets]

        def submit() -> list[Any]:
            return [
                self._submit("broadcast", [part.described()], part, root=root)
                for root, part in enumerate(parts)
            ]

        requests = _core.call_with_waits(0.0, submit)  # all are in flight at once
        return self._work(requests, lambda: put_back(parts), out, opts)

    @_collective
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> GradredWork:
        """Gather all ranks' tensors in one tensor."""
        target = dense(output, "all_gather_single")
        require_fit(target, tensor, self._ranks, "all_gather_single")
        return self._gather(tensor, lambda whole: put(whole, target), [output], opts, target)

    @_collective
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Gather several tensors, each in one tensor."""
        pairs = zip(outputs, inputs, strict=True)
        works = [ProcessGroupOfRanks.all_gather_single(self, *pair, opts) for pair in pairs]
        return together(works, self._limit_of(opts))

    @_collective
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Gather several tensors, each in a list."""
        works = [
            ProcessGroupOfRanks.allgather(self, [[row[index] for row in outputs]], [tensor], opts)
            for index, tensor in enumerate(inputs)
        ]
        return together(works, self._limit_of(opts), result=[list(row) for row in outputs])

    @_collective
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> GradredWork:
        """Reduce one tensor over all ranks. Each rank receives its part of the result."""
        asked = "reduce_scatter_single"
        how = self._reduction(opts.reduceOp, tensor)
        target = reducible(output, how["op"], asked)
        view = reducible(_contiguous(tensor, asked), how["op"], asked)
        require_fit(view, target, self._ranks, asked)
        each = target.numel()
        result = ResultPlace(target, view.dtype)
        array = result.of(view, DTYPES[view.dtype], (self._ranks, each), asked)
        request = self._submit("reducescatter", [array], (view, target), **how)

        def finish() -> None:
            if each and (made := request.outputs):
                put(torch.from_numpy(made[0]).view(view.dtype), target)

        return self._work([request], finish, [output], opts, placed=True)

    @_collective
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Reduce several tensors. Each rank receives its part of each result."""
        pairs = zip(outputs, inputs, strict=True)
        works = [ProcessGroupOfRanks.reduce_scatter_single(self, *pair, opts) for pair in pairs]
        return together(works, self._limit_of(opts))

    @_collective
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Reduce lists of tensors over all ranks. Each rank receives the result at its index."""
        output = as_list(outputs)[0]
        found = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
        after_writes(found)
        parts = [readable(part, "reduce_scatter") for part in found]
        require_one_for_each(parts, self._ranks, "reduce_scatter")
        require_fit(parts[self._own_rank], output, 1, "reduce_scatter")
        if all(part.numel() == output.numel() for part in parts):
            whole = torch.cat([part.reshape(-1) for part in parts])
            return ProcessGroupOfRanks.reduce_scatter_single(self, output, whole, opts)
        target, own = dense(output, "reduce_scatter"), c10d.AllreduceOptions()
        own.reduceOp, own.timeout = opts.reduceOp, opts.timeout
        sums = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        work = ProcessGroupOfRanks.allreduce(self, sums, own)
        increment_versions([output])
        limit, own_rank = self._limit_of(opts), self._own_rank
        return together([work], limit, lambda: put(sums[own_rank], target), [output])

    @_collective
    def reduce(self, tensors: Any, opts: Any) -> GradredWork:
        """Reduce to the root. The tensors of the other ranks stay unchanged."""
        tensor = as_list(tensors)[0]
        is_root = self._own_rank == opts.rootRank
        target = dense(tensor, "reduce") if is_root else tensor
        how = self._reduction(opts.reduceOp, target)
        whole = _contiguous(target, "reduce")
        view = reducible(whole, how["op"], "reduce")
        sums = view if is_root else torch.empty_like(view)
        arrays = [described(view, sums, "reduce")]
        request = self._submit("allreduce", arrays, (view, sums), **how, call="reduce")
        is_copied_back = is_root and not target.is_contiguous()
        finish = functools.partial(target.copy_, whole) if is_copied_back else None
        return self._work([request], finish, [tensor], opts, written=[tensor] if is_root else [])

    @_collective
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Gather all ranks' tensors on the root."""
        flat, is_root = as_list(inputs)[0], self._own_rank == opts.rootRank
        found = outputs[0] if outputs and isinstance(outputs[0], (list, tuple)) else outputs
        targets = [dense(target, "gather") for target in found] if is_root else []
        if is_root:
            require_one_for_each(targets, self._ranks, "gather")
            for target in targets:
                require_fit(target, flat, 1, "gather")
        flat = _contiguous(flat, "gather").reshape(-1)
        whole = flat.new_empty(len(targets) * flat.numel())
        work = ProcessGroupOfRanks.gather_single(self, whole, flat, opts)
        increment_versions(targets)
        limit, out = self._limit_of(opts), list(found) if is_root else []
        return together([work], limit, lambda: put_behind(whole, targets), out)

    @_collective
    def gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> GradredWork:
        """Gather all ranks' tensors in one tensor on the root."""
        row = _contiguous(tensor, "gather_single").reshape(1, tensor.numel())
        is_root, splits = self._own_rank == opts.rootRank, [0] * self._ranks
        splits[opts.rootRank] = 1
        if is_root:
            require_fit(output, row, self._ranks, "gather_single")
        target = output if is_root else output.new_empty(0)
        expected, names = [int(is_root)] * self._ranks, self._engine.ranks
        check = functools.partial(require_one_root, expected, ranks=names, asked="gather")
        return self._result_of_swap(row, splits, target, "gather", check, opts)

    @_collective
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Send one of the root's tensors to each rank."""
        output, root = as_list(outputs)[0], opts.rootRank
        rows = output.new_empty((0, output.numel()))
        splits = [0] * self._ranks
        if self._own_rank == root:
            found = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
            after_writes(found)
            parts = [readable(part, "scatter").reshape(-1) for part in found]
            require_one_for_each(parts, self._ranks, "scatter")
            for part in parts:
                require_fit(output, part, 1, "scatter")
            rows = torch.cat(parts).reshape(len(parts), output.numel())
            splits = [1] * self._ranks
        expected = [int(rank == root) for rank in range(self._ranks)]
        names = self._engine.ranks
        check = functools.partial(require_one_root, expected, ranks=names, asked="scatter")
        return self._result_of_swap(rows, splits, output, "scatter", check, opts)

    def _swap(self, rows: Tensor, splits: Sequence[int], result: ResultPlace, asked: str) -> Any:
        """Submit an alltoall of rows."""
        data, dtype = as_moved(rows)
        array = result.of(data, dtype, tuple(data.shape), asked)
        call = asked if asked in ("gather", "scatter") else ""
        how: dict[str, Any] = {"splits": list(splits), "call": call}
        return self._submit("alltoall", [array], (data, result), **how)

    def _result_of_swap(
        self,
        rows: Tensor,
        splits: Sequence[int],
        output: Tensor,
        asked: str,
        check: Callable[[Sequence[int]], None],
        opts: Any,
    ) -> GradredWork:
        """Exchange rows, `splits` for each rank, and store those for this rank in `output`.

        `check` raises an error unless the numbers of rows from each rank are right.
        """
        target = dense(output, asked)
        request = self._swap(rows, splits, ResultPlace(target), asked)

        def finish() -> None:
            check(request.rows[0])
            if target.numel() and (made := request.outputs):
                put(torch.from_numpy(made[0]).view(target.dtype), target)

        return self._work([request], finish, [output], opts)

    @_collective
    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: Any, input_splits: Any, opts: Any
    ) -> GradredWork:
        """Exchange rows. Each rank receives its rows of every rank's tensor."""
        asked = "all_to_all_single"
        tensor = _contiguous(tensor, asked)
        if output.dtype is not tensor.dtype:
            found = f"the output is of {output.dtype}, the input of {tensor.dtype}"
            raise UsageError(asked, found, "Pass tensors of one type")
        rows = list(input_splits or []) or even_splits(tensor.shape[0], self._ranks, asked)
        expected = list(output_splits or [])
        if expected and (len(expected) != self._ranks or sum(expected) != output.shape[0]):
            found = f"the output has {output.shape[0]} rows for {self._ranks} ranks"
            remedy = "Pass the number of rows from each rank, which add up to these"
            raise UsageError(f"{asked}(output_split_sizes={expected})", found, remedy)
        each = math.prod(tensor.shape[1:])  # elements per row, also if there are no rows
        data = tensor.reshape(tensor.shape[0], each)
        check = functools.partial(require_rows, expected, asked=asked)
        return self._result_of_swap(data, rows, output, asked, check, opts)

    @_collective
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> GradredWork:
        """Exchange tensors. Each rank receives one tensor of every rank's list."""
        after_writes(inputs)
        flat = [readable(tensor, "all_to_all").reshape(-1) for tensor in inputs]
        targets = [dense(target, "all_to_all") for target in outputs]
        require_one_for_each(flat, self._ranks, "all_to_all")
        require_one_for_each(targets, self._ranks, "all_to_all")
        whole = torch.cat(flat)
        made = whole.new_empty(sum(target.numel() for target in targets))
        expected, sent = ([one.numel() for one in tensors] for tensors in (targets, flat))
        work = ProcessGroupOfRanks.all_to_all_single(self, made, whole, expected, sent, opts)
        increment_versions(outputs)
        limit = self._limit_of(opts)
        return together([work], limit, lambda: put_behind(made, targets), list(outputs))

    # ---- messages ------------------------------------------------------------------------------

    @shown("send")
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> GradredWork:  # noqa: N803
        """Send a message to one rank."""
        flat = readable(as_list(tensors)[0], "send").cpu().contiguous().reshape(-1)
        message = self._messages.send(as_bytes(flat), dstRank, tag)
        work = GradredWork([message], None, as_list(tensors), self._limit)
        work.kind = "send"
        return self._noted(work)

    def _receive(self, tensors: Any, source: int | None, tag: int) -> GradredWork:
        target = dense(as_list(tensors)[0], "recv")
        in_place = target.device.type == "cpu" and target.is_contiguous()
        flat = target.reshape(-1) if in_place else torch.empty(target.numel(), dtype=target.dtype)
        message = self._messages.receive(as_bytes(flat), source, tag)
        finish = None if in_place else lambda: put(flat, target)
        increment_versions([target])
        work = GradredWork([message], finish, as_list(tensors), self._limit)
        work._source_rank = message.source
        work.kind = "recv" if source is not None else "recv_anysource"
        return self._noted(work)

    @shown("recv")
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> GradredWork:  # noqa: N803
        """Receive a message from one rank."""
        return self._receive(tensors, srcRank, tag)

    @shown("recvAnySource")
    def recv_anysource(self, tensors: Any, tag: int = 0) -> GradredWork:
        """Receive a message from any rank."""
        return self._receive(tensors, None, tag)


# The core serves calls of these that wait (csrc/python/group_methods.cc), by such an operation.
_QUICK = {
    "allreduce": ("allreduce", dist.AllreduceOptions),
    "broadcast": ("broadcast", dist.BroadcastOptions),
    "all_gather_single": ("allgather", c10d.AllgatherOptions),
    "reduce_scatter_single": ("reducescatter", dist.ReduceScatterOptions),
}

for _name, _method in METHODS.items():
    if _method.old:
        setattr(ProcessGroupOfRanks, _method.old, getattr(ProcessGroupOfRanks, _name))
        if _name in _QUICK:
            _QUICK[_method.old] = _QUICK[_name]

COLLECTIVES = [
    name
    for name, method in vars(ProcessGroupOfRanks).items()
    if hasattr(method, "__wrapped__") and name != "barrier"
]
"""The methods with tensor arguments: those that `shown` decorates, except the barrier."""


class ProcessGroupGradred(ProcessGroupOfRanks):
    """The group that torch uses. It passes tensors on other devices to other backends' groups."""

    def _start_coalescing(self, device: torch.device) -> None:
        own: Any = super()
        (self.other_devices.group_for(device) or own)._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        own: Any = super()
        return (self.other_devices.group_for(device) or own)._end_coalescing(device)


def _closer_look(method: Callable[..., Any]) -> Callable[..., Any]:
    def look(self: ProcessGroupGradred, *given: Any, **named: Any) -> Any:
        """Carry out what the core does not serve, and let it serve later calls."""
        if (
            self._title is None
            and self._coalesced is None
            and not self.other_devices.is_being_made()
            and not self.other_devices.has_the_host()
            and not isinstance(self._engine, NotYet)
        ):
            self._title = self.pg_name
        return method(self, *given, **named)

    return look


for _name in COLLECTIVES:
    made = handing_on(_name, getattr(ProcessGroupGradred, _name))
    if _name in _QUICK and hasattr(_QUICK[_name][1], "asyncOp"):  # older PyTorch has no such flag
        setattr(ProcessGroupGradred, f"_closer_{_name}", _closer_look(made))
        made = _core.group_method(*_QUICK[_name], made.__name__, f"_closer_{_name}")
    setattr(ProcessGroupGradred, _name, made)
left_alone(ProcessGroupGradred)

_done = GradredWork([], None, [], None)  # of all operations that ended in their calls
_done.is_completed()
_core.know_groups(Tensor, _REDUCTIONS, running, is_profiled, _done)


def _contiguous(tensor: Tensor, asked: str) -> Tensor:
    """An input as it is in memory, or a copy that is made after the works that write to it."""
    require_tensor(tensor, asked)
    if tensor.layout is torch.strided:
        is_as_it_is = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        after_writes([] if is_as_it_is else [tensor])
    return readable(tensor, asked).contiguous()


def _of_bool(name: str, tensor: Tensor) -> str:
    """For bool, a sum is a logical or, and a product is a logical and, as in torch."""
    if tensor.dtype is not torch.bool:
        return name
    return {"sum": "lor", "prod": "land"}.get(name, name)
