"""Neural networks: the gradients that backward makes, in their order, and when it makes them."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gradred_lab.simulate.accuracy import Floats

_TABLE = Path(__file__).with_name("data") / "models.json"

# The name in a table of measurements, in lower case and without blanks: the first that it
# contains. The setting of ddl-benchmarks, of 64 tokens a sequence, has heads for pre-training.
_BY_NAME = (
    ("bert-large", "bert_large_pretraining_v30528"),
    ("bert-base64", "bert_base_pretraining_v30528"),
    ("bert", "bert_base"),
    ("resnet-50", "resnet50"),
    ("resnet50", "resnet50"),
    ("vgg", "vgg16"),
    ("alexnet", "alexnet"),
    ("inception", "googlenet_bn"),
    ("googlenet", "googlenet"),
    ("gpt2", "gpt2_small"),
    ("gpt-2", "gpt2_small"),
)
_GPT = re.compile(r"h(\d+)\s+l(\d+)\s+s(\d+)\s+v(\d+)")
# Of a transformer by its name: the width of its layers, their number, tokens of a sample.
_SHAPES = {
    "bert_base": (768, 12, 128),
    "bert_base_pretraining_v30528": (768, 12, 64),
    "bert_large_pretraining_v30528": (1024, 24, 64),
    "gpt2_small": (768, 12, 1024),
}
_TENSORS = 100  # of a network of which only the number of elements is given


class Shape(NamedTuple):
    """Of a transformer: the width of its layers, their number, and the tokens of a sample."""

    hidden: int
    layers: int
    tokens: int


@dataclass(frozen=True)
class Network:
    """Elements of each gradient; the share of backward's time after which it is ready."""

    name: str
    is_known: bool
    elements: Floats
    ready: Floats
    macs: float = 0.0
    """Multiply-adds of forward for one sample; 0 if nobody knows."""
    shape: Shape | None = None
    """None: it is no transformer, or nobody knows."""

    def part(self, of: int) -> Network:
        """What each of so many devices has of it, if they share it equally."""
        return replace(self, elements=self.elements / of)


def names() -> list[str]:
    """The networks whose gradients are known."""
    return list(_models())


def find(
    model: str, options: str, numbers: tuple[int | None, int | None] = (None, None)
) -> Network:
    """The network of a table's model.

    Args:
        model: its name.
        options: of the training, which say of some networks which variant it is.
        numbers: of elements and of tensors, of a network that nobody knows here. Without the second
            it has a hundred tensors, all of one size. Without both it is not known.
    """
    gpt = _GPT.search(model)
    if gpt:
        return _transformer(model, *(int(number) for number in gpt.groups()))
    name = re.sub(r"[\s_]", "", model.lower()) + ("64" if "length 64" in options else "")
    own = model if options else model.replace("-", "_")
    for known in [own, *(known for part, known in _BY_NAME if part in name)]:
        if known in _models():
            table = _models()[known]
            shape = Shape(*_SHAPES[known]) if known in _SHAPES else None
            return replace(_network(known, table["elements"], table["forward_macs"]), shape=shape)
    elements, tensors = numbers[0], numbers[1] or _TENSORS
    each = (elements or 0) // tensors
    return _network(model, [each] * tensors, [1] * tensors, is_known=False)


def _network(name: str, elements: list[int], work: list[int], *, is_known: bool = True) -> Network:
    done = np.cumsum(np.asarray(work, float))
    macs = float(done[-1]) if is_known else 0.0
    return Network(name, is_known, np.asarray(elements, float), done / max(done[-1], 1.0), macs)


def _transformer(name: str, hidden: int, layers: int, tokens: int, words: int) -> Network:
    """A decoder by its numbers: twelve h^2 a layer in two pieces, the embedding last."""
    piece = 6 * hidden * hidden
    work = piece * tokens + hidden * tokens * tokens
    elements = [piece] * (2 * layers) + [(words + tokens) * hidden]
    first = work + hidden * words * tokens  # the loss before the last layer
    made = _network(name, elements, [first] + [work] * (2 * layers - 1) + [0])
    return replace(made, shape=Shape(hidden, layers, tokens))


@functools.cache
def _models() -> dict[str, dict[str, list[int]]]:
    models: dict[str, dict[str, list[int]]] = json.loads(_TABLE.read_text("utf-8"))["models"]
    return models
