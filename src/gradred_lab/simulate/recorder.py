"""Run a PyTorch program and record its iterations: `python -m gradred_lab.simulate.recorder`.

    python -m gradred_lab.simulate.recorder OUT ITERATIONS train.py --its --options
    python -m gradred_lab.simulate.recorder OUT ITERATIONS -m package --its --options

The program is not changed. Hooks that PyTorch has for all modules, optimizers and parameters say
when forward of each module begins and ends, when each gradient is ready, and when the optimizer
steps. An iteration is from the end of one step to the end of the next. Every second iteration runs
without the work of the hooks: its length is that of the program alone. After enough iterations the
program ends.
"""

from __future__ import annotations

import atexit
import collections
import os
import runpy
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradred._util import cpu
from gradred_lab.simulate.trace import Gradient, Trace

SKIP = 5  # iterations before the first one that counts
_COPIES, _COPIED = 9, 64 << 20  # copies that are timed, and the bytes of each at most


def main(words: Sequence[str]) -> None:
    """Record the program whose words follow the file of the trace and the number of iterations."""
    out, iterations, *program = words
    recorder = Recorder(Path(out), int(iterations), " ".join(program))
    recorder.install()
    atexit.register(recorder.write)
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


class Recorder:
    """The times of the hooks of one process. Not for several optimizers that step in turn."""

    def __init__(self, path: Path, iterations: int, program: str) -> None:
        self._path, self._wanted, self._program = path, iterations, program
        self._names: dict[int, str] = {}  # of parameters, by id
        self._modules: dict[int, list[int]] = {}  # parameters of modules without children
        self._step = 0
        self._depth = 0  # of calls of modules
        self._batch = ""
        self._device = "cpu"
        self._packs = False
        self._at: dict[str, float] = {}  # times of this iteration
        self._entered: list[float] = []
        self._forward: dict[int, float] = collections.defaultdict(float)
        self._ready: dict[int, float] = {}
        self._seen: dict[int, Any] = {}  # parameters that have got a gradient
        self._recorded: list[dict[str, Any]] = []
        self._plain: list[float] = []
        self._written = False

    @property
    def _is_on(self) -> bool:
        """Whether this iteration is recorded; the others are only timed."""
        return self._step >= SKIP and self._step % 2 == 1

    def install(self) -> None:
        """Add the hooks."""
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        self._torch = torch
        module.register_module_forward_pre_hook(self._before_forward)
        module.register_module_forward_hook(self._after_forward)
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)

    def _now(self) -> float:
        if self._device == "cuda":
            self._torch.cuda.synchronize()
        return time.perf_counter()

    # ---- hooks ----------------------------------------------------------------------------------

    def _before_forward(self, module: Any, inputs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._begin(module, inputs)
        if self._is_on:
            self._entered.append(self._now())

    def _after_forward(self, module: Any, _inputs: Any, _outputs: Any) -> None:
        self._depth -= 1
        if not self._is_on or not self._entered:
            return
        begin, end = self._entered.pop(), self._now()
        own = self._modules.get(id(module), [])
        for parameter in own:
            self._forward[parameter] += (end - begin) / len(own)
        if self._depth == 0:
            self._at["forward end"] = end

    def _begin(self, module: Any, inputs: Any) -> None:
        """The outermost module is called."""
        if self._step == 0:
            self._learn(module)
        tensors = [one for one in inputs if hasattr(one, "shape")]
        if tensors and not self._batch:
            self._batch = "x".join(map(str, tensors[0].shape))
        if self._is_on and "forward begin" not in self._at:
            self._at["forward begin"] = self._now()

    def _learn(self, module: Any) -> None:
        self._packs |= isinstance(module, self._torch.nn.parallel.DistributedDataParallel)
        for name, parameter in module.named_parameters():
            self._names.setdefault(id(parameter), name)
            self._device = parameter.device.type
        for part in module.modules():
            own = [id(one) for one in part.parameters(recurse=False)]
            if own:
                self._modules[id(part)] = own

    def _is_ready(self, parameter: Any) -> None:
        self._seen[id(parameter)] = parameter
        if self._is_on:
            self._ready[id(parameter)] = self._now()

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._step == 0:
            self._watch(optimizer)
        if self._is_on:
            self._at["backward end"] = self._now()

    def _watch(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for number, parameter in enumerate(group["params"]):
                if parameter.requires_grad:
                    self._names.setdefault(id(parameter), f"parameter {number}")
                    parameter.register_post_accumulate_grad_hook(self._is_ready)

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        now = self._now()
        if self._is_on and {"forward begin", "forward end"} <= {*self._at}:
            self._keep(now)
        elif self._step >= SKIP:
            self._plain.append(now - self._at["step end"])
        self._at = {"step end": now}
        self._forward.clear()
        self._ready.clear()
        self._entered.clear()
        self._step += 1
        if self._step >= SKIP + 2 * self._wanted:
            self.write()
            raise SystemExit(0)

    # ---- the trace ------------------------------------------------------------------------------

    def _keep(self, now: float) -> None:
        at = self._at
        self._recorded.append(
            {
                "load": at["forward begin"] - at["step end"],
                "forward": at["forward end"] - at["forward begin"],
                "by tensor": dict(self._forward),
                "ready": {one: time - at["forward end"] for one, time in self._ready.items()},
                "update": now - max([at["forward end"], *self._ready.values()]),
            }
        )

    def write(self) -> None:
        """Write the trace, once; nothing if the program made too few iterations."""
        if self._written or len(self._recorded) < 2 or not self._plain:
            return
        self._written = True
        Trace(
            program=self._program,
            device=self._device,
            batch=self._batch,
            gradients=self._gradients(),
            load_s=self._median("load"),
            update_s=self._median("update"),
            iterations_s=(tuple(round(one, 7) for one in self._plain),),
            copy_s_per_byte=self._copy_seconds(),
            packs=self._packs,
            about={
                "cpu": cpu.model(),
                "cores": cpu.cores(),
                "torch": str(self._torch.__version__),
                "threads": self._torch.get_num_threads(),
            },
        ).write(self._path)

    def _copy_seconds(self) -> float:
        """Seconds per byte of a copy on the device of what gradients that share a message have."""
        total = sum(one.numel() * one.element_size() for one in self._seen.values())
        count = max(1, min(int(total), _COPIED))
        source = self._torch.zeros(count, dtype=self._torch.uint8, device=self._device)
        target, times = self._torch.zeros_like(source), []
        for _ in range(_COPIES):
            begin = self._now()
            target.copy_(source)
            times.append(self._now() - begin)
        return statistics.median(times) / count

    def _median(self, what: str) -> float:
        return float(statistics.median(one[what] for one in self._recorded))

    def _gradients(self) -> tuple[Gradient, ...]:
        """Return the gradients in the order of their median times.

        All share the part of the forward pass beside modules.
        """
        ready = {
            one: statistics.median(
                record["ready"][one] for record in self._recorded if one in record["ready"]
            )
            for one in self._seen
            if any(one in record["ready"] for record in self._recorded)
        }
        order = sorted(ready, key=lambda one: ready[one])
        forward = {
            one: statistics.median(record["by tensor"].get(one, 0.0) for record in self._recorded)
            for one in order
        }
        beside = max(0.0, self._median("forward") - sum(forward.values())) / max(1, len(order))
        found, before = [], 0.0
        for one in order:
            tensor = self._seen[one]
            found.append(
                Gradient(
                    name=self._names[one],
                    elements=int(tensor.numel()),
                    itemsize=int(tensor.element_size()),
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    forward_s=forward[one] + beside,
                    backward_s=max(0.0, ready[one] - before),
                )
            )
            before = max(before, ready[one])
        return tuple(found)


if __name__ == "__main__":
    main(sys.argv[1:])
