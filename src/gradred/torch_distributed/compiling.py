"""Exclude methods from torch.compile without importing the compiler.

In a compiled region, the compiler traces all Python code that PyTorch's C++ code calls. An example
is a group's broadcast when DistributedDataParallel rebuilds its buckets. The compiler then fails on
the process group. `torch.compiler.disable` would import the compiler, which takes more than a
second. The functions here also work if a program imports the compiler later.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def left_alone(decorated: Class) -> Class:
    """Run a class's own methods, and the functions that they call, without compilation."""
    for value in vars(decorated).values():
        method = value.fget if isinstance(value, property) else value
        if isinstance(method, FunctionType):
            _leave_alone(method)
    return decorated


def _leave_alone(function: FunctionType) -> None:
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)  # for the frame and for frames below
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):  # an older PyTorch treats them as plain objects
        pass
