from __future__ import annotations

import os

import pytest

from chart import BINARIES
from image import assemble, final_stages


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """The trees of all images by name."""
    if os.geteuid() != 0:
        pytest.skip("only root may change its root")
    missing = [stage.name for stage in final_stages() if not (BINARIES / stage.name).exists()]
    assert not missing, f"{missing} are not in {BINARIES}: cargo build --workspace --bins"
    return {stage.name: assemble(stage, tmp_path_factory.mktemp(stage.name)) for stage in final_stages()}
