"""Write the metadata that makes a source tree's planners known: `python planners/weir_planners/metadata.py PYPROJECT FOLDER`, for
images.

An image copies the sources and installs nothing, and planners are found by the entry points of installed packages.
Standard library only.
"""

import sys
import tomllib
from pathlib import Path


def planners(pyproject: Path) -> list[str]:
    """Return the names of the project's planners."""
    return list(tomllib.loads(pyproject.read_text())["project"]["entry-points"]["weir.planners"])


def write(pyproject: Path, folder: Path) -> Path:
    """Write name, version and entry points of a project as `importlib.metadata` reads them in `folder`; return the new
    folder."""
    project = tomllib.loads(pyproject.read_text())["project"]
    name, version = project["name"], project["version"]
    made = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return made


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
