from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from chart import BINARIES
from fleet import Machine
from image import assemble, final_stages


# Set to 1, what only root can run is left out.
WITHOUT_ROOT = "TIDEGATE_CHARTS_WITHOUT_ROOT"


def needs_root(user: int, variables: Mapping[str, str]):
    """Fails for anybody but root: a run that left out most of its tests must not look like one that passed."""
    if user == 0:
        return
    what = "only root may change its root and make networks"
    if variables.get(WITHOUT_ROOT) == "1":
        pytest.skip(what)
    pytest.fail(f"{what}: run as root, or set {WITHOUT_ROOT}=1 to leave out what needs it", pytrace=False)


@pytest.fixture(scope="session")
def as_root():
    needs_root(os.geteuid(), os.environ)


@pytest.fixture(scope="session")
def trees(as_root, tmp_path_factory):
    """The trees of all images by name."""
    missing = [stage.name for stage in final_stages() if not (BINARIES / stage.name).exists()]
    assert not missing, f"{missing} are not in {BINARIES}: cargo build --workspace --bins"
    return {stage.name: assemble(stage, tmp_path_factory.mktemp(stage.name)) for stage in final_stages()}


@pytest.fixture
def machine(as_root):
    # Not below pytest's own folder, which nobody but root may enter.
    with tempfile.TemporaryDirectory(prefix="tidegate-fleet-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = Machine(folder)
        yield made
        made.close()
