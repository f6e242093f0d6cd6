"""The error classes: the classes by which each can be caught, and pickling between processes."""

import builtins
import inspect
import pickle

import pytest

from gradred import errors

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, errors.Error)
]


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (errors.Error, RuntimeError),
        (errors.UsageError, ValueError),
        (errors.UsageTypeError, TypeError),
        (errors.UsageTypeError, errors.UsageError),
        (errors.UsageBufferError, BufferError),
        (errors.UsageBufferError, errors.UsageError),
        (errors.UsageElementError, KeyError),
        (errors.UsageElementError, BufferError),
        (errors.UsageElementError, errors.UsageTypeError),
        (errors.TimeoutError, builtins.TimeoutError),
        (errors.TimeoutError, errors.TransportError),
        (errors.PeerLost, errors.TransportError),
        (errors.DeviceError, errors.Error),
    ],
)
def test_error_is_caught_as(error, base):
    with pytest.raises(base, match="the reason"):
        raise error("the reason")


@pytest.mark.parametrize("error", CLASSES)
def test_error_survives_pickling_with_its_message(error):
    copy = pickle.loads(pickle.dumps(error("the reason")))
    assert type(copy) is error
    assert str(copy) == "the reason"


def test_every_class_of_errors_is_tested_here():
    own = {
        one for one in vars(errors).values() if getattr(one, "__module__", "") == "gradred.errors"
    }
    assert {one for one in own if isinstance(one, type)} == set(CLASSES)


@pytest.mark.parametrize("error", CLASSES)
def test_error_of_three_parts_has_the_message_that_explain_composes(error):
    made = error("asked", "found", "Do this")
    assert str(pickle.loads(pickle.dumps(made))) == str(made) == "asked: found. Do this."
    assert made.args == (str(made),)


def test_types_are_named_with_their_article():
    assert (errors.type_of(3), errors.type_of([])) == ("an int", "a list")


def test_message_says_what_was_asked_found_and_to_be_done():
    assert errors.explain("asked", "found", "Do this") == "asked: found. Do this."
