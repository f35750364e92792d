from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from chart import BINARIES
from fleet import Machine
from image import assemble, final_stages


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """The trees of all images by name."""
    if os.geteuid() != 0:
        pytest.skip("only root may change its root")
    missing = [stage.name for stage in final_stages() if not (BINARIES / stage.name).exists()]
    assert not missing, f"{missing} are not in {BINARIES}: cargo build --workspace --bins"
    return {stage.name: assemble(stage, tmp_path_factory.mktemp(stage.name)) for stage in final_stages()}


@pytest.fixture
def machine():
    # Not below pytest's own folder, which nobody but root may enter.
    with tempfile.TemporaryDirectory(prefix="tidegate-fleet-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = Machine(folder)
        yield made
        made.close()
