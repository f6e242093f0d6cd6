"""Training that goes on from its last commit after an operation has failed, or a rank has died.

`run` restores the state, and starts the function anew: with all ranks, or with those of a host that
live. `gradred run --min-np` and its like replace ranks, and take hosts in (docs/horovod.md).
"""

from __future__ import annotations

from gradred.torch.elastic import sampler, state
from gradred.torch.elastic.sampler import ElasticSampler
from gradred.torch.elastic.state import ObjectState, State, TorchState, run

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "sampler", "state"]
