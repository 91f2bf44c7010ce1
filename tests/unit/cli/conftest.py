"""The command line is built once: to read the signatures of all commands takes longer than most commands."""

from collections.abc import Iterator
from functools import cache
from unittest import mock

import pytest
import typer.main


@pytest.fixture(scope="session", autouse=True)
def built_once() -> Iterator[None]:
    with mock.patch("typer.main.get_command", cache(typer.main.get_command)):
        yield
