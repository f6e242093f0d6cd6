"""Train a flax network on handwritten digits, data-parallel.

    gradred run -np 2 python examples/jax_flax.py

The optimizer is a chain whose first part averages the gradients of all ranks. The rest is as in a
program of one process.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

import gradred.jax

EPOCHS, BATCH, RATE = 6, 64, 5e-3


class Network(nn.Module):
    """Two convolutions, and a layer of scores."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the scores (n, 10) of the images (n, 8, 8, 1)."""
        for features in (16, 32):
            images = nn.relu(nn.Conv(features, (3, 3))(images))
        images = nn.avg_pool(images, (2, 2), strides=(2, 2))
        return nn.Dense(10)(images.reshape(images.shape[0], -1))


@jax.jit
def step(state: TrainState, images: jax.Array, labels: jax.Array) -> TrainState:
    """Train on this rank's part of a batch."""

    def loss(params: nn.FrozenDict) -> jax.Array:
        found = state.apply_fn(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean()

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


def main() -> None:
    rank, size = gradred.jax.rank(), gradred.jax.size()
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32).reshape(-1, 8, 8, 1) / 16
    network = Network()
    state = TrainState.create(
        apply_fn=network.apply,
        params=gradred.jax.bcast(network.init(jax.random.key(rank), images[:1])),
        tx=optax.chain(gradred.jax.pmean_gradients(), optax.adam(RATE)),
    )
    random = np.random.default_rng(0)  # all ranks shuffle alike
    for epoch in range(EPOCHS + 1):
        right = jnp.argmax(network.apply(state.params, images[1500:]), 1) == labels[1500:]
        if rank == 0:
            print(
                f"epoch {epoch}: {100 * float(right.mean()):.1f} % of the test images", flush=True
            )
        order = random.permutation(1500) if epoch < EPOCHS else []
        for begin in range(0, len(order) - BATCH + 1, BATCH):
            mine = order[begin : begin + BATCH][rank::size][: BATCH // size]
            state = step(state, images[mine], labels[mine])


if __name__ == "__main__":
    main()
