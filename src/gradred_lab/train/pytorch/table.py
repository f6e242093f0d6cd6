"""PyTorch's models and peers, as tables. Importing this does not import PyTorch."""

from __future__ import annotations

from gradred_lab.train.framework import Model, Peer

_RESIDUAL = ("scale", "image", "layers")
_IMAGES = ("scale", "image")
_WORDS = ("scale", "sequence", "layers")

MODELS = {
    "resnet50": Model("ResNet-50 v1.5", "images", 25_557_032, 8, _RESIDUAL),
    "vgg16": Model("VGG-16", "images", 138_357_544, 4, _IMAGES),
    "alexnet": Model("AlexNet", "images", 61_100_840, 16, _IMAGES),
    "googlenet": Model("GoogLeNet", "images", 13_004_888, 8, _IMAGES),
    "bert-base": Model(
        "BERT-base with its pre-training heads", "sequences", 110_106_428, 4, _WORDS
    ),
    "gpt2": Model("GPT-2 small", "sequences", 124_439_808, 4, _WORDS),
    "wide-deep": Model("Wide & Deep", "rows", 34_000_417, 256, ("scale", "layers")),
    "face": Model("ArcFace's ResNet-50, 85,742 people", "faces", 87_490_752, 8, _RESIDUAL),
}
"""The models by name. Sizes are those of training, auxiliary heads included."""

BUILDERS = {
    "resnet50": ("vision", "ResNet50"),
    "vgg16": ("vision", "Vgg16"),
    "alexnet": ("vision", "AlexNet"),
    "googlenet": ("vision", "GoogLeNet"),
    "bert-base": ("transformers", "BertBase"),
    "gpt2": ("transformers", "Gpt2"),
    "wide-deep": ("wide_deep", "WideDeep"),
    "face": ("face", "FaceNetwork"),
}
"""Module in `models` and class of each."""

_DDP_BUCKET = 25 << 20  # PyTorch's default
_FUSED = 4 << 20  # gradred.named.MOST_FUSED_BYTES

PEERS = {
    "single": Peer("one process, while the other ranks sleep", exchanges=False, everyone=False),
    "compute": Peer(
        "every rank by itself: the time of a step if the exchange took none", exchanges=False
    ),
    "ddp-gloo": Peer("DistributedDataParallel with gloo", bucket_bytes=_DDP_BUCKET),
    "ddp-gradred": Peer(
        "DistributedDataParallel with gradred", by_gradred=True, bucket_bytes=_DDP_BUCKET
    ),
    "horovod": Peer(
        "gradred.torch, Horovod's DistributedOptimizer", by_gradred=True, bucket_bytes=_FUSED
    ),
    "mpi4py": Peer("by hand: flatten, MPI's Allreduce by mpi4py, unflatten"),
    "mpi4py-gradred": Peer("by hand, with gradred's Allreduce", by_gradred=True),
}
"""The peers by name, in the order of the report."""
