"""A script as Horovod's documentation teaches to write it: Keras, on handwritten digits.

    gradred run --horovod -np 2 python examples/horovod_keras.py

Nothing in it knows of gradred; it needs TensorFlow 2.16 or newer and scikit-learn.
"""

import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

EPOCHS, BATCH, TRAIN = 4, 32, 1500


def main() -> None:
    hvd.init()
    keras.utils.set_random_seed(42)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    train = tf.data.Dataset.from_tensor_slices((images[:TRAIN], labels[:TRAIN]))
    train = train.shard(hvd.size(), hvd.rank()).shuffle(TRAIN).batch(BATCH)
    test = (images[TRAIN:], labels[TRAIN:])

    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    rate = 0.02 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            rate, warmup_epochs=1, steps_per_epoch=len(train), momentum_correction=False
        ),
    ]
    history = model.fit(
        train, epochs=EPOCHS, validation_data=test, callbacks=callbacks, verbose=0
    ).history
    if hvd.rank() == 0:
        for epoch, right in enumerate(history["val_accuracy"]):
            print(f"epoch {epoch}: {100 * right:.1f} % of the test images are right")


if __name__ == "__main__":
    main()
