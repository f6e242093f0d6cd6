"""The networks of `gradred train`: their sizes are those published, and each of them learns."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gradred.errors import UsageError
from gradred_lab.simulate import networks
from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch import FRAMEWORK
from gradred_lab.train.pytorch.table import BUILDERS, MODELS

torch = pytest.importorskip("torch")

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SMALL = Size(scale=0.125, image=64, sequence=16, layers=1)
PUBLISHED = {
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "gpt2": 124_439_808,
}
# The lists of tensors that the simulator has of the same networks; BERT's is of the encoder alone.
LISTED = {
    "resnet50": "resnet50",
    "vgg16": "vgg16",
    "alexnet": "alexnet",
    "googlenet": "googlenet_bn_aux",
    "bert-base": "bert_base",
    "gpt2": "gpt2_small",
}


def needs_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")


def network(name: str, size: Size) -> Any:
    module, of = BUILDERS[name]
    if module == "vision":
        needs_torchvision()
    return getattr(importlib.import_module(f"gradred_lab.train.pytorch.models.{module}"), of)(size)


def published(name: str) -> Any:
    with torch.device("meta"):  # counts need no memory
        return network(name, Size())


def count(module: Any) -> int:
    return sum(one.numel() for one in module.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_table(name: str) -> None:
    assert count(published(name)) == MODELS[name].parameters


def test_parameters_are_those_published() -> None:
    assert {name: MODELS[name].parameters for name in PUBLISHED} == PUBLISHED
    assert count(published("bert-base").encoder) == 109_482_240
    assert count(published("face").backbone) == 43_590_848


def test_googlenet_has_both_auxiliary_heads_beyond_what_is_published() -> None:
    made = published("googlenet")
    heads = count(made.network.aux1) + count(made.network.aux2)
    assert count(made) - heads == 6_624_904


@pytest.mark.parametrize("name", MODELS)
def test_gradients_have_the_sizes_and_the_order_of_the_record(name: str) -> None:
    newest = max(RESULTS.glob("train-quick-*.json"), key=lambda one: one.stem[-10:])
    record = json.loads(newest.read_text())
    (row,) = (one for one in record["rows"] if one["cell"]["model"] == name)
    made = network(name, Size(**row["cell"]["size"]))
    found: list[int] = []
    for one in made.parameters():
        one.register_post_accumulate_grad_hook(lambda ready: found.append(ready.numel()))
    inputs, targets = made.sample(2, torch.Generator())
    made.loss(made(*inputs), targets).backward()
    assert found == row["layers"]["elements"]


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "alexnet", "googlenet"])
def test_networks_of_other_widths_are_the_same_but_for_them(name: str) -> None:
    options = ("kernel_size", "stride", "padding", "bias", "eps", "momentum", "p", "ceil_mode")

    def layers(size: Size) -> list[tuple[Any, ...]]:
        with torch.device("meta"):
            made = network(name, size)
        assert all(one.training for one in made.modules())
        return [
            (type(one), *(_plain(getattr(one, option, None)) for option in options))
            for one in made.modules()
        ]

    assert layers(Size(scale=0.5)) == layers(Size())


def _plain(value: Any) -> Any:
    """An option of a layer as it is, but only of a bias that there is one."""
    return "bias" if isinstance(value, torch.nn.Parameter) else value


@pytest.mark.parametrize("name", LISTED)
def test_tensors_are_those_that_the_simulator_knows(name: str) -> None:
    made = published(name)
    if name == "bert-base":
        made = made.encoder
    table = json.loads(
        Path(networks.__file__).with_name("data").joinpath("models.json").read_text()
    )
    elements = Counter(one.numel() for one in made.parameters())
    if name == "gpt2":  # three matrices of attention here, one there
        elements = Counter(merged(elements))
    assert elements == Counter(table["models"][LISTED[name]]["elements"])


def merged(elements: Counter[int]) -> list[int]:
    """Query, key and value as one tensor; they and the output have the same number of elements."""
    layers, width = 12, 768
    found = elements - Counter({width * width: 3 * layers, width: 3 * layers})
    return [*(found + Counter({3 * width * width: layers, 3 * width: layers})).elements()]


@pytest.mark.parametrize("name", MODELS)
def test_every_network_learns_its_batch_and_reaches_every_parameter(name: str) -> None:
    torch.manual_seed(1)
    made = network(name, SMALL)
    assert count(made) < MODELS[name].parameters / 4
    inputs, targets = made.sample(4, torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.001, momentum=0.9)
    losses = []
    for _ in range(5):
        torch.manual_seed(3)  # the same dropout in each step, so that losses can be compared
        optimizer.zero_grad()
        loss = made.loss(made(*inputs), targets)
        loss.backward()
        assert all(one.grad is not None for one in made.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0], losses


def test_a_size_changes_only_what_a_model_reads() -> None:
    assert MODELS["vgg16"].reduction(SMALL) == "scale 0.125, image 64"
    assert MODELS["gpt2"].reduction(SMALL) == "scale 0.125, sequence 16, layers 1"
    assert MODELS["gpt2"].reduction(Size(image=64)) == ""


def test_arithmetic_of_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    precision = importlib.import_module("gradred_lab.train.pytorch.precision")
    convolutions, products = (types.SimpleNamespace(allow_tf32=one) for one in (True, False))
    monkeypatch.setattr(torch.backends, "cudnn", convolutions)
    monkeypatch.setattr(torch.backends.cuda, "matmul", products)
    assert precision.text("fp32", "cpu") == "float32"
    found = precision.text("fp32", "cuda")
    assert found == "float32, convolutions in TF32 where the GPU has it"
    convolutions.allow_tf32 = False
    assert precision.text("fp32", "cuda") == "float32"


def test_margin_lowers_the_score_of_the_right_person_alone() -> None:
    torch.manual_seed(1)
    made = network("face", SMALL).eval()
    (images, people), _ = made.sample(4, torch.Generator().manual_seed(2))
    with torch.no_grad():
        scores, others = made(images, people), made(images, (people + 1) % made.people)
    rows = torch.arange(4)
    assert (scores[rows, people] < others[rows, people]).all()
    scores[rows, people] = others[rows, people] = 0
    other = (people + 1) % made.people
    scores[rows, other] = others[rows, other] = 0
    assert torch.equal(scores, others)


def test_networks_of_images_need_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    FRAMEWORK.check(["gpt2", "face"], "cpu", [False])
    with pytest.raises(UsageError) as caught:
        FRAMEWORK.check(["gpt2", "vgg16"], "cpu", [False])
    said = str(caught.value)
    assert "--models vgg16: torchvision is not installed." in said
    assert said.endswith('"gradred[lab]", or name others: bert-base, gpt2, wide-deep, face.')


def test_operators_of_torchvision_that_do_not_load_are_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs_torchvision()
    vision = importlib.import_module("gradred_lab.train.pytorch.models.vision")
    declared: list[str] = []
    missing = "operator torchvision::nms does not exist"

    def imported(name: str) -> str:
        if len(declared) < 2:
            raise RuntimeError(missing)
        return name

    loader = types.SimpleNamespace(import_module=imported)
    monkeypatch.setattr(vision, "importlib", loader)
    monkeypatch.setattr(torch.library, "define", lambda name, _: declared.append(name))
    assert vision.load() == "torchvision.models"
    assert declared == ["torchvision::nms", "torchvision::qnms"]
    declared, missing = [], "something else"
    with pytest.raises(RuntimeError, match=missing):
        vision.load()
    assert declared == []
