"""Who is not root is told that most was not tested, and not that all is well."""

from __future__ import annotations

import pytest

from conftest import WITHOUT_ROOT, needs_root


@pytest.mark.parametrize(
    ("user", "variables", "comes_to"),
    [
        (0, {}, None),
        (0, {WITHOUT_ROOT: "1"}, None),
        (1000, {}, pytest.fail.Exception),
        (1000, {WITHOUT_ROOT: ""}, pytest.fail.Exception),
        (1000, {WITHOUT_ROOT: "0"}, pytest.fail.Exception),
        (1000, {WITHOUT_ROOT: "1"}, pytest.skip.Exception),
    ],
)
def test_without_root_the_run_fails_unless_that_is_meant(user, variables, comes_to):
    if comes_to is None:
        needs_root(user, variables)
        return
    with pytest.raises(comes_to) as told:
        needs_root(user, variables)
    assert "only root" in str(told.value)
    assert comes_to is pytest.skip.Exception or f"{WITHOUT_ROOT}=1" in str(told.value)
