"""PyTorch tensors on a GPU with the front ends for deep learning: a section of h200.py.

Each result is checked. Times are of alternating blocks. They are compared with a program without
gradred (copy to the host, the MPI's Allreduce, copy back) and with PyTorch's gloo.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from timeit import Timer
from typing import Any

import numpy as np
from blocks import block_length, interleave, microseconds
from libraries import Library
from mpi4py import MPI
from telling import so_far

import gradred
from gradred.bench.timing import ratio

Record = dict[str, Any]
WORLD = MPI.COMM_WORLD
SIZES = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26, 1 << 28]
GRADIENTS = [64, 9408, 4096, 16384, 36864, 65536, 147456, 262144, 589824, 1048576, 2359296]
"""Lengths of ResNet-50's gradients; a model has several of each."""


def measure(comm: gradred.Comm, library: Library, most: int) -> Record:
    """Measure tensors of up to `most` bytes; returns the reason if PyTorch finds no GPU."""
    try:
        import torch
    except ImportError as error:
        return {"skipped": str(error)}
    if library.name == "simulated":
        return _on_simulated_driver(torch, comm, most)
    if not torch.cuda.is_available():
        return {"skipped": f"PyTorch {torch.__version__} sees no GPU"}
    run = Run(torch, comm, lambda values: values.cuda(), torch.cuda.synchronize)
    record = run.sizes(most) | {"gradients": run.gradients(10)}
    for name, part in (("ddp", run.ddp), ("fsdp2", run.fsdp2), ("step", run.step)):
        try:
            record[name] = part()
        except Exception as error:  # the other parts run in any case
            record[name] = {"error": f"{type(error).__name__}: {error}"}
    return record


def _on_simulated_driver(torch: Any, comm: gradred.Comm, most: int) -> Record:
    """Run all parts except DDP, which needs PyTorch's own tensors."""
    from gpu.simulated import the_driver
    from gpu.tensors import in_stream, on_gpu

    driver = the_driver()
    stream = driver.stream()
    with in_stream(driver, stream):
        run = Run(torch, comm, lambda values: on_gpu(values, stream), lambda: None)
        return run.sizes(most) | {"gradients": run.gradients(1)}


class Run:
    """The ranks, and the function that copies tensors to the GPU."""

    def __init__(
        self,
        torch: Any,
        comm: gradred.Comm,
        put: Callable[[Any], Any],
        synchronize: Callable[[], object],
    ) -> None:
        import gradred.torch as hvd

        self.torch, self.hvd, self.dist = torch, hvd, torch.distributed
        self.comm, self.put, self.synchronize = comm, put, synchronize
        hvd.init()
        folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
        how = {"init_method": f"file://{folder}/store", "rank": comm.rank}
        self.dist.init_process_group("gradred", world_size=comm.size, **how)
        self.gloo = self.dist.new_group(backend="gloo")

    def given(self, count: int, rank: int) -> Any:
        """Return a rank's whole numbers, on the host."""
        return ((self.torch.arange(count) + rank) % 5).to(self.torch.float32)

    def expect(self, x: Any, what: str) -> None:
        """Check that `x` is the sum over all ranks."""
        sums = sum(self.given(x.numel(), rank) for rank in range(self.comm.size))
        if not self.torch.equal(x.cpu(), sums):
            raise AssertionError(f"{what}: not the sum")

    def sizes(self, most: int) -> Record:
        """Time single tensors, with all variants in turn."""
        rows: list[Record] = []
        for nbytes in SIZES:
            if nbytes <= most:
                rows.append(self.one_size(nbytes))
                so_far(self.comm.rank, rows)
        return {"torch": self.torch.__version__, "ranks": self.comm.size, "rows": rows}

    def one_size(self, nbytes: int) -> Record:
        x = self.put(self.given(nbytes // 4, self.comm.rank))
        calls: dict[str, Callable[[], object]] = {
            "by hand": lambda: self.by_hand(x),
            "horovod": lambda: self.hvd.allreduce_(x, name=f"{nbytes}", op=self.hvd.Sum),
            "distributed": lambda: self.dist.all_reduce(x),
        }
        if type(x) is self.torch.Tensor and x.is_cuda:
            calls["gloo"] = lambda: (
                self.dist.all_reduce(x, group=self.gloo),
                self.synchronize(),
            )
        for name, call in calls.items():
            x.copy_(self.given(nbytes // 4, self.comm.rank))
            call()
            self.expect(x, f"{name}: {nbytes} bytes")
        x.copy_(self.torch.zeros(nbytes // 4))
        timers = [Timer(call) for call in calls.values()]
        block = min(block_length(timer, 0.02, WORLD) for timer in timers)
        times = interleave(timers, 9, block, WORLD)
        row: Record = {"bytes": nbytes, "calls": block}
        for place, name in enumerate(calls):
            middle, low, high = ratio(times[:, 0], times[:, place])
            row[name] = {"us": microseconds(times[:, place]), "by_hand_over_it": middle}
            row[name] |= {"p10": low, "p90": high}
        return row

    def by_hand(self, x: Any) -> None:
        on_host = x.cpu().numpy()
        sums = np.empty_like(on_host)
        MPI.Intracomm.Allreduce(WORLD, on_host, sums)
        x.copy_(self.torch.from_numpy(sums))
        self.synchronize()

    def gradients(self, of_each: int) -> Record:
        """Time many operations in flight at the same time, in backward order."""
        lengths = [length for length in GRADIENTS for _ in range(of_each)]
        tensors = [self.put(self.given(length, self.comm.rank)) for length in lengths]
        handles = [
            self.hvd.allreduce_async_(x, name=f"gradient {number}", op=self.hvd.Sum)
            for number, x in reversed(list(enumerate(tensors)))
        ]
        for handle in handles:
            self.hvd.synchronize(handle)
        for number, x in enumerate(tensors):
            self.expect(x, f"gradient {number}")
        return {"tensors": len(tensors)}

    def models(self) -> tuple[Any, Any, Any]:
        """Return two equal models, and a batch for all ranks."""
        torch = self.torch
        torch.manual_seed(3)
        made = []
        for _ in range(2):
            layers = [torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
            made.append(torch.nn.Sequential(*layers).cuda())
        made[1].load_state_dict(made[0].state_dict())
        return *made, torch.randn(self.comm.size * 8, 512).cuda()

    def backward(self, model: Any, batch: Any) -> None:
        """Run a backward pass on this rank's part of the batch."""
        model(batch[self.comm.rank * 8 :][:8]).square().mean().backward()

    def compare(self, what: str, grads: list[Any], alone: Any, batch: Any) -> Record:
        """Compare gradients with those of one process on the whole batch."""
        alone(batch).square().mean().backward()
        pairs = zip(grads, (b.grad for b in alone.parameters()), strict=True)
        apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        if not apart <= 1e-4:
            raise AssertionError(f"{what}: gradients are {apart} apart from one process's")
        return {"largest_relative_difference": apart}

    def ddp(self) -> Record:
        """Test the ranks' gradients with DDP."""
        model, alone, batch = self.models()
        self.backward(self.torch.nn.parallel.DistributedDataParallel(model), batch)
        return self.compare("DDP", [one.grad for one in model.parameters()], alone, batch)

    def fsdp2(self) -> Record:
        """Test fully_shard, which gathers parameters and scatters gradients."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model, alone, batch = self.models()
        mesh = init_device_mesh("cuda", (self.comm.size,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        self.backward(model, batch)
        grads = [one.grad.full_tensor() for one in model.parameters()]
        return self.compare("FSDP2", grads, alone, batch)

    def step(self) -> Record:
        """Time a backward pass of 25 million parameters in DDP, gradred and gloo in turn."""
        torch = self.torch
        torch.manual_seed(3)
        groups = {"gradred": None, "gloo": self.gloo, "alone": None}
        models = {}
        for name, group in groups.items():
            layers = [torch.nn.Linear(1024, 1024) for _ in range(24)]
            model = torch.nn.Sequential(*layers).cuda()
            if name != "alone":
                model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
            models[name] = model
        batch = torch.randn(64, 1024).cuda()
        times: dict[str, list[float]] = {name: [] for name in groups}
        for number in range(13):
            for name, model in models.items():
                WORLD.barrier()
                begin = time.perf_counter()
                model(batch).square().mean().backward()
                torch.cuda.synchronize()
                if number > 2:  # DDP rebuilds its buckets in the first steps
                    times[name].append(time.perf_counter() - begin)
        return {f"{name} us": microseconds(np.array(each)) for name, each in times.items()}
