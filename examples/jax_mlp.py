"""Train a network on handwritten digits with JAX, data-parallel.

    gradred run -np 2 python examples/jax_mlp.py

Each rank takes its part of every batch. One call averages the gradients, inside the jitted step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import gradred.jax

LAYERS = (64, 256, 256, 10)
EPOCHS, BATCH, RATE = 8, 64, 2e-3
Weights = list[tuple[jax.Array, jax.Array]]


def new_weights(key: jax.Array) -> Weights:
    keys = jax.random.split(key, len(LAYERS))
    pairs = zip(keys, LAYERS[:-1], LAYERS[1:], strict=False)
    return [(jax.random.normal(k, (n, m)) * np.sqrt(2 / n), jnp.zeros(m)) for k, n, m in pairs]


def scores(weights: Weights, images: jax.Array) -> jax.Array:
    """The scores (n, 10) of the images (n, 64)."""
    *hidden, (last, bias) = weights
    for matrix, shift in hidden:
        images = jax.nn.relu(images @ matrix + shift)
    return images @ last + bias


def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    found = scores(weights, images)
    return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean()


optimizer = optax.adam(RATE)


@jax.jit
def step(
    weights: Weights, state: optax.OptState, images: jax.Array, labels: jax.Array
) -> tuple[Weights, optax.OptState]:
    """Train on this rank's part of a batch."""
    grads = gradred.jax.pmean_tree(jax.grad(loss)(weights, images, labels))
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(weights, updates), state


@jax.jit
def share_right(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The share of the test images that all ranks together recognise."""
    right = jnp.argmax(scores(weights, images), 1) == labels
    return gradred.jax.allreduce(right.mean(), "avg")


def main() -> None:
    rank, size = gradred.jax.rank(), gradred.jax.size()
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    train, test = slice(0, 1500), 1500 + rank + size * np.arange(297 // size)  # as many on each
    # Each rank begins with other weights, and gets those of rank 0.
    weights = gradred.jax.bcast(new_weights(jax.random.key(rank)))
    state = optimizer.init(weights)
    random = np.random.default_rng(0)  # all ranks shuffle alike
    for epoch in range(EPOCHS + 1):
        right = 100 * float(share_right(weights, images[test], labels[test]))
        if rank == 0:
            print(f"epoch {epoch}: {right:.1f} % of the test images", flush=True)
        order = random.permutation(1500) if epoch < EPOCHS else []
        for begin in range(0, len(order) - BATCH + 1, BATCH):
            mine = order[begin : begin + BATCH][rank::size][: BATCH // size]
            weights, state = step(weights, state, images[train][mine], labels[train][mine])
    # Equal weights on all ranks: the means were the same.
    spread = gradred.jax.allreduce(weights, "max")
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), weights, spread)))


if __name__ == "__main__":
    main()
