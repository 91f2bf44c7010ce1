"""The page in the package is the one that its sources make."""

import os
import subprocess
from pathlib import Path

from tests.integration.page.conftest import ROOT

BUNDLE = ROOT / "services" / "knowledge" / "weir_knowledge" / "bundle"


def test_the_sources_make_the_bundle_byte_by_byte(sources: Path, tmp_path: Path) -> None:
    """So that a wheel or an image that is built without Node has the page of these sources (`make page` builds it)."""
    environment = os.environ | {"WEIR_PAGE_OUT": str(tmp_path)}
    subprocess.run(["npm", "run", "build"], cwd=sources, env=environment, capture_output=True, timeout=300, check=True)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_bytes() for path in BUNDLE.iterdir()}
    assert len(built) == 4
