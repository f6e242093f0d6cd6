"""Text generation by a transformer of which each rank holds a part, as inference servers do it.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Over two hosts with two ranks each, type this on both hosts:

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint node1:29500 \
        examples/tensor_parallel.py

DTensor splits the weights: each rank has some of the attention's heads, of the columns of further
layers, and of the vocabulary. For each token the ranks add up their parts twice in a block, and
once for the embedding. The weights are random. So the program compares the generated tokens with
those of the whole model. The number of ranks divides 8. It needs PyTorch 2.5 or newer.
"""

import socket

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

BLOCKS, WIDTH, HEADS, VOCABULARY, LONGEST = 4, 256, 8, 512, 64
PROMPT = [3, 141, 59, 265, 358]
Cache = list[Tensor]  # the keys and values of earlier tokens, for the heads of this rank


class Block(nn.Module):
    """Attention, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Process new tokens, of shape (tokens, WIDTH); all of them, or one after the others."""
        inner = self.first_norm(x)
        query, key, value = (
            layer(inner).unflatten(-1, (-1, WIDTH // HEADS)).transpose(0, 1)
            for layer in (self.query, self.key, self.value)
        )
        if cache:
            key, value = (torch.cat(pair, 1) for pair in zip(cache, (key, value), strict=True))
        cache[:] = key, value
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=len(x) > 1)
        x = x + self.output(seen.transpose(0, 1).flatten(1))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class Transformer(nn.Module):
    """A decoder with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, caches: list[Cache]) -> Tensor:
        begin = caches[0][0].shape[1] if caches[0] else 0
        x = self.tokens(tokens) + self.places(torch.arange(begin, begin + len(tokens)))
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(x[-1])


def split(model: Transformer, size: int) -> None:
    """Leave on each rank its part of the weights."""
    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "blocks.*.up": columns,
        "blocks.*.down": rows,
        "blocks.*.output": rows,
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    plan |= {f"blocks.*.{name}": columns for name in ("query", "key", "value")}
    parallelize_module(model, init_device_mesh("cpu", (size,)), plan)


@torch.no_grad()
def generated(model: Transformer, count: int) -> list[int]:
    """Return the prompt with the most probable tokens after it."""
    tokens, caches = list(PROMPT), [Cache() for _ in range(BLOCKS)]
    new = tokens
    for _ in range(count):
        new = [int(model(torch.tensor(new), caches).argmax())]
        tokens += new
    return tokens


def main() -> None:
    dist.init_process_group("gradred")  # this word
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    model = Transformer()
    expected = generated(model, 16)
    split(model, size)
    found = generated(model, 16)
    if found != expected:
        raise SystemExit(f"rank {rank}: {found}, and the whole model: {expected}")
    if rank == 0:
        print(f"{size} ranks generate the same as the whole model: {' '.join(map(str, found))}")
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    here, whole = (sum(tensor.numel() for tensor in them) for them in (parts, model.parameters()))
    print(f"rank {rank} on {socket.gethostname()} keeps {here} of {whole} weights", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
