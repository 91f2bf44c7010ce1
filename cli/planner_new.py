"""`weir planner new NAME`: a planner's project, ready to be tested, served and built."""

import keyword
import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from cli.errors import InvalidInput

FILES = ("README.md", "pyproject.toml", "Dockerfile", "planner.py", "test_planner.py")
"""Files of the template; `planner.py` is renamed to the planner's module."""


def new(name: str, directory: Path) -> list[Path]:
    """Write the project `name` below `directory`; returns its files. Raises `InvalidInput` for a name that policies
    cannot use, and if the folder exists: nothing is overwritten."""
    from weir_contracts import NAME_PATTERN
    from weir_planner.installed import built_in

    if not re.fullmatch(NAME_PATTERN, name) or "." in name:
        raise InvalidInput(
            f"{name!r}: a planner's name has lower-case letters, digits and dashes, at most 63, as in my-planner"
        )
    if name in built_in():
        raise InvalidInput(f"{name!r}: is the name of a built-in planner")
    module = name.replace("-", "_")
    if not module.isidentifier() or keyword.iskeyword(module):
        raise InvalidInput(f"{name!r}: its module could not be imported")
    if _is_taken(module):
        raise InvalidInput(f"{name!r}: its module would hide the installed module {module}")
    folder = directory / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InvalidInput(f"{folder}: exists already") from None
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be created: {error.strerror}") from None
    values = {"name": name, "module": module, "title": name.replace("-", " ").capitalize()}
    written = []
    for source in FILES:
        text = (files("cli") / "planner_template" / f"{source}.txt").read_text(encoding="utf-8")
        path = folder / source.replace("planner.py", f"{module}.py")
        path.write_text(Template(text).substitute(values), encoding="utf-8")
        written.append(path)
    return written


def _is_taken(module: str) -> bool:
    """Return whether Python or an installed package has a module of this name, which a planner may need."""
    found = find_spec(module)
    return module in sys.stdlib_module_names or (found is not None and found.origin is not None)


def new_command(
    name: Annotated[
        str, typer.Argument(help="Name by which policies will choose it: lower-case letters, digits and dashes.")
    ],
    directory: Annotated[
        Path, typer.Option("--directory", "-C", help="Folder in which to create the project.")
    ] = Path(),
) -> None:
    """Write a planner's project: planner, test, Dockerfile."""
    written = new(name, directory)
    sys.stdout.writelines(f"{path}\n" for path in written)
    sys.stdout.write(f"now: cd {written[0].parent} && pytest; then its README says how it is registered\n")
