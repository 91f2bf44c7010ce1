"""The picture that the README begins with shows what the page has."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.page.conftest import ROOT, WAIT_MILLISECONDS, Visits, serving
from tests.integration.page.picture import HEIGHT, PICTURES, PRICE, WIDTH, outline_of, size_of, take

expect.set_options(timeout=WAIT_MILLISECONDS)
MAX_BYTES = 250_000


@pytest.fixture(scope="module")
def priced(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page that the pictures are of."""
    with serving(tmp_path_factory.mktemp("priced") / "log", **PRICE) as address:
        yield address


@pytest.mark.parametrize("scheme", PICTURES)
def test_the_picture_shows_what_the_page_has(priced: str, visits: Visits, scheme: str) -> None:
    """Taken again, it has the same size, titles, labels, buttons and colours; `make picture` writes it."""
    kept = PICTURES[scheme].read_bytes()
    page = visits.open(f"{priced}#/shop/orders?zoom=all", WIDTH, HEIGHT, scheme)
    picture, outline = take(page)
    assert outline_of(kept) == outline, "run `make picture`, look at what it writes, and commit it"
    assert size_of(kept) == size_of(picture) == (WIDTH, HEIGHT)
    assert len(kept) < MAX_BYTES


def test_the_readme_begins_with_both() -> None:
    """GitHub shows the one of the reader's scheme."""
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r'(?:srcset|src)="([^"]+)"', readme.partition("\n\n")[2].partition("\n\n")[0])
    assert {ROOT / name for name in shown} == set(PICTURES.values())
