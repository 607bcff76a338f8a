import warnings

import pytest

from groupwise.errors import GroupwiseWarning
from groupwise.observe import warnings_as_lines


@pytest.mark.filterwarnings("always")
def test_the_packages_warnings_are_said_once_each_and_others_go_where_they_went(capsys):
    lines = []
    with warnings_as_lines(lines.append):
        for text in ("slow", "slow", "odd"):
            warnings.warn(text, GroupwiseWarning, stacklevel=1)
        inner = []
        with warnings_as_lines(inner.append):
            warnings.warn("slow", GroupwiseWarning, stacklevel=1)
        with pytest.warns(UserWarning, match="theirs"):
            warnings.warn("theirs", UserWarning, stacklevel=1)
    assert (lines, inner) == (["slow", "odd"], ["slow"])


@pytest.mark.filterwarnings("always")
def test_other_peoples_warnings_are_shown_as_before(monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    before = warnings.showwarning
    with warnings_as_lines(pytest.fail):
        warnings.warn("theirs", UserWarning, stacklevel=1)
    assert shown == ["theirs"]
    assert warnings.showwarning is before
