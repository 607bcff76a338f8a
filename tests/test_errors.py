"""One small tree of errors that reads as sentences."""

import pytest

from groupwise import errors
from groupwise.errors import (
    BadValueError,
    GroupHealthError,
    GroupwiseError,
    GroupwiseWarning,
    MissingFieldError,
    NonFiniteScoreError,
    UnknownNameError,
    unknown_name,
)


@pytest.mark.parametrize(
    ("error", "caught_as"),
    [
        (BadValueError, [GroupwiseError, ValueError]),
        (GroupHealthError, [GroupwiseError, BadValueError, ValueError]),
        (NonFiniteScoreError, [GroupwiseError, BadValueError, ValueError]),
        (UnknownNameError, [GroupwiseError, ValueError, KeyError]),
        (MissingFieldError, [GroupwiseError, ValueError, KeyError]),
        (GroupwiseWarning, [UserWarning]),
    ],
)
def test_an_error_is_caught_as_what_it_is_about(error, caught_as):
    for kind in caught_as:
        with pytest.raises(kind):
            raise error("a sentence")


def test_whatever_is_raised_on_purpose_has_one_root():
    found = [x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, Exception)]
    assert all(issubclass(x, GroupwiseError | GroupwiseWarning) for x in found)


@pytest.mark.parametrize("error", [GroupwiseError, UnknownNameError, MissingFieldError, BadValueError])
def test_a_message_is_shown_as_the_sentence_it_is(error):
    assert str(error("it's a sentence")) == "it's a sentence"
    assert str(error()) == ""


def test_an_unknown_name_is_told_the_nearest_and_all_there_are():
    assert str(unknown_name("estimator", "grop", ["rloo", "grpo"])) == (
        "unknown estimator 'grop'; the nearest is 'grpo'; known: grpo, rloo"
    )


def test_where_nothing_is_known_nothing_is_near():
    assert str(unknown_name("estimator", "grop", [])) == "unknown estimator 'grop'; known: "


def test_a_name_that_is_no_string_can_be_unknown_too():
    assert str(unknown_name("field", 3, ["a"])) == "unknown field 3; the nearest is 'a'; known: a"
