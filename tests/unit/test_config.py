"""The table of settings: parsing, precedence, messages, and the page generated from it."""

import importlib.util
import os
import pathlib

import pytest
from core_testing import ranks_on_host

from gradred import config
from gradred.errors import UsageError
from gradred.launch import variables

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    yield
    config.reset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("200ms", 0.2), ("2min", 120), ("1h", 3600), (" 3 S ", 3)],
)
def test_duration_is_read(text, seconds):
    assert config.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "5 weeks", "1e3", "nan", "inf", "1s2"])
def test_duration_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match="such as 90"):
        config.parse_duration(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("warn_after", "2min", 120.0),
        ("timeout", "90", 90.0),
        ("timeout", "none", None),
        *(("deterministic", "yes", True), ("deterministic", "Size", "size")),
        ("shm", "off", False),
        ("trace", "/somewhere/trace.json", "/somewhere/trace.json"),
        ("plan", "ring", "ring"),
        ("slices", "4", 4),
        ("slices", "auto", None),
        *(("profile", "1", "1"), ("profile", "on", "1"), ("profile", "True", "1")),
        *(("profile", "0", None), ("profile", "off", None), ("profile", "", None)),
        *(("profile", "none", None), ("profile", "p.{rank}.json", "p.{rank}.json")),
        ("profile", " p.json ", "p.json"),
    ],
)
def test_environment_gives_a_typed_value(monkeypatch, name, text, value):
    monkeypatch.setenv(config.variable(name), text)
    assert config.get(name) == value
    assert getattr(config.load(), name) == value
    assert config.snapshot()[name].source == "environment"


@pytest.mark.parametrize("name", [name for name, _ in config.snapshot().items()])
def test_shown_value_can_be_read_again(name):
    shown = config.show(name, config.get(name))
    before = config.get(name)
    config.set(name, shown)
    assert config.get(name) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timeout", "soon"),
        ("warn_after", "none"),
        ("deterministic", "maybe"),
        ("slices", "0"),
        ("slices", "-3"),
        ("plan", "a plan"),
    ],
)
def test_malformed_value_names_variable_and_form(monkeypatch, name, text):
    monkeypatch.setenv(config.variable(name), text)
    with pytest.raises(
        UsageError, match=rf"{config.variable(name)}={text}: cannot be read. Write "
    ):
        config.load()


@pytest.mark.parametrize("plan", ["binomial", "scatter_allgather", "recursive_halving"])
def test_a_plan_without_allreduces_is_none_for_devices_and_those_are_listed(monkeypatch, plan):
    monkeypatch.setenv("GRADRED_DEVICE_PLAN", plan)
    with pytest.raises(UsageError, match=r"no allreduces\. Use auto or one of .*nccl"):
        config.load()
    monkeypatch.setenv("GRADRED_DEVICE_PLAN", "ring")
    assert config.get("device_plan") == "ring"


@pytest.mark.parametrize("count", ["1", "10", "4095"])
def test_too_few_bytes_of_a_workspace_are_refused_where_settings_are_read(monkeypatch, count):
    monkeypatch.setenv("GRADRED_IPC_BYTES", count)
    with pytest.raises(UsageError, match=rf"^GRADRED_IPC_BYTES={count}: .* at least 4096, or none"):
        config.load()
    monkeypatch.setenv("GRADRED_IPC_BYTES", "4096")
    assert config.get("ipc_bytes") == 4096


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("GRADRED_TIMEOT", "GRADRED_TIMEOUT"),
        ("GRADRED_DETERMINSTIC", "GRADRED_DETERMINISTIC"),
        ("GRADRED_timeout", "GRADRED_TIMEOUT"),
    ],
)
def test_unknown_variable_names_the_nearest_knob(monkeypatch, wrong, near):
    monkeypatch.setenv(wrong, "1")
    with pytest.raises(UsageError, match=rf"^{wrong}: .* {near}.$"):
        config.load()


def test_unknown_name_in_code_is_refused():
    with pytest.raises(UsageError, match=r"slice: .*nearest one is slices"):
        config.get("slice")
    with pytest.raises(UsageError, match="nearest one is slices"):
        config.set("slice", 3)


def test_code_wins_over_environment_until_reset(monkeypatch):
    assert config.snapshot()["timeout"] == config.Value(None, "default")
    monkeypatch.setenv("GRADRED_TIMEOUT", "90s")
    config.set("timeout", 1.5)
    assert config.snapshot()["timeout"] == config.Value(1.5, "code")
    config.reset("timeout")
    assert config.snapshot()["timeout"] == config.Value(90.0, "environment")


def test_set_takes_values_and_texts():
    config.set("shm", False)
    config.set("timeout", None)
    config.set("trace", pathlib.Path("out.json"))
    found = config.load()
    assert (found.shm, found.timeout, found.trace) == (False, None, "out.json")


def test_set_refuses_a_value_of_another_form_and_keeps_the_old():
    config.set("slices", 2)
    with pytest.raises(UsageError, match="at least 1"):
        config.set("slices", 0)
    assert config.get("slices") == 2


def test_page_of_the_documentation_is_up_to_date():
    path = ROOT / "tools" / "gen_config_docs.py"
    spec = importlib.util.spec_from_file_location("gen_config_docs", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == generator.page(), "run python tools/gen_config_docs.py"
    assert all(config.variable(name) in page for name in config.snapshot())


def test_plan_that_is_none_is_refused_with_the_nearest(monkeypatch):
    monkeypatch.setenv("GRADRED_PLAN", "rign")
    with pytest.raises(UsageError, match=r"^GRADRED_PLAN=rign: no plan .*Did you mean 'ring'\?$"):
        config.load()
    monkeypatch.setenv("GRADRED_PLAN", "x")
    with pytest.raises(UsageError, match=r"no plan has that name. Use auto or one of .*node, "):
        config.load()


def test_value_of_any_bytes_is_kept(monkeypatch):
    monkeypatch.setitem(os.environb, b"GRADRED_TRACE", b"/somewhere/\xff.json")
    assert os.fsencode(config.get("trace")) == b"/somewhere/\xff.json"


@pytest.mark.parametrize("name", variables._RANKS_OF_HOST)
def test_variables_of_the_number_of_ranks_on_a_host_are_those_of_the_launcher(monkeypatch, name):
    for other in variables._RANKS_OF_HOST:
        monkeypatch.delenv(other, raising=False)
    assert ranks_on_host() == 0
    monkeypatch.setenv(name, "3")
    assert ranks_on_host() == variables.ranks_on_host(os.environ) == 3
