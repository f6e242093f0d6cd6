"""Training that goes on from its last commit after an operation has failed.

Within a job whose ranks live: `run` restores the state, and starts the function anew. Ranks that
have died are not replaced yet, nor are hosts added: then the error reaches the program.
"""

from __future__ import annotations

from gradred.torch.elastic import sampler, state
from gradred.torch.elastic.sampler import ElasticSampler
from gradred.torch.elastic.state import ObjectState, State, TorchState, run

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "sampler", "state"]
