"""Training that resumes from its last commit after an operation has failed or a rank has ended.

`run` restores the state and calls the function again: with all ranks, or with the remaining ranks
of one host. `gradred run --min-np` and similar commands replace ranks and add hosts
(docs/horovod.md).
"""

from gradred.horovod.elastic.state import ObjectState, State
from gradred.torch.elastic import sampler, state
from gradred.torch.elastic.sampler import ElasticSampler
from gradred.torch.elastic.state import TorchState, run

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "sampler", "state"]
