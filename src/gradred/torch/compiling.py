"""Methods that torch's compiler leaves alone, also where it is imported later.

Within a compiled region it is offered all Python that PyTorch's C++ calls, such as a group's
broadcast where DistributedDataParallel makes its buckets anew, and ends with an error at a process
group. `torch.compiler.disable` would import it, which takes more than a second.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def left_alone(decorated: Class) -> Class:
    """Have a class's own methods, and what they call, run as they are."""
    for value in vars(decorated).values():
        method = value.fget if isinstance(value, property) else value
        if isinstance(method, FunctionType):
            _leave_alone(method)
    return decorated


def _leave_alone(function: FunctionType) -> None:
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)  # of the frame, of those that it calls
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):  # an older PyTorch, which takes them to be plain objects
        pass
