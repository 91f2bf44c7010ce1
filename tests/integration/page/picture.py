"""The picture of the page that the README begins with: `make picture` takes it of the world of these tests, light and dark.

Each file carries an outline of what the page had, as text in the PNG, which a test compares: the titles, labels and
buttons with their numbers masked, and the colours. Pixels depend on the fonts of a machine.
"""

import struct
import sys
import tempfile
import zlib
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.integration.page.conftest import ROOT, WAIT_MILLISECONDS, Visits, chromium, serving

PICTURES = {
    "light": ROOT / "docs" / "images" / "page-application.png",
    "dark": ROOT / "docs" / "images" / "page-application-dark.png",
}
WIDTH, HEIGHT = 1440, 1010
PRICE = {"WEIR_KNOWLEDGE_SLOT_HOUR_PRICE": "0.042 EUR"}
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK, _KEYWORD = b"iTXt", b"Description"
_LABELS = (
    "h1, h2, h3, header a, .connection, button:not(.entry), label, dt, th[scope=col], .key, .hint, .operator .title"
)
_OUTLINE = """
labels => {
  const masked = text => text.replace(/\\d+([.,:]\\d+)*/g, "#");
  const texts = [...document.querySelectorAll(labels)].map(each => `${each.localName} ${masked(each.textContent)}`);
  const rules = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]);
  const names = rules.find(rule => rule.selectorText === ":root").style;
  const style = getComputedStyle(document.documentElement);
  const colours = [...names].filter(name => name.startsWith("--")).map(name => `${name} ${style.getPropertyValue(name)}`);
  return [...texts, ...colours];
}
"""


def take(page: Page) -> tuple[bytes, str]:
    """Return a picture of the page of an application with its newest change opened, and its outline."""
    page.locator("li.scale > .entry").first.click()
    expect(page.locator(".decision-detail")).to_be_visible()
    moment = page.locator(".readout dd").first.inner_text().split()[0]
    expect(page.locator("#graph-title")).to_contain_text(moment)
    expect(page.locator(".operator")).to_have_count(5)
    expect(page.get_by_text("forecast of then")).to_be_visible()
    page.mouse.move(2, 2)
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    # What the charts show is drawn in the frame after.
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    lines = (" ".join(line.split()) for line in page.evaluate(_OUTLINE, _LABELS))
    return page.screenshot(animations="disabled"), "\n".join(lines)


def described(picture: bytes, outline: str) -> bytes:
    """Return a PNG with an outline in it, before its end."""
    body = _CHUNK + _KEYWORD + bytes(5) + outline.encode()  # not packed, no language
    chunk = struct.pack(">I", len(body) - len(_CHUNK)) + body + struct.pack(">I", zlib.crc32(body))
    end = picture.rindex(b"IEND") - 4
    return picture[:end] + chunk + picture[end:]


def outline_of(picture: bytes) -> str | None:
    """Return the outline in a PNG; None for none."""
    place = len(_SIGNATURE)
    while place < len(picture):
        (length,) = struct.unpack(">I", picture[place : place + 4])
        kind, data = picture[place + 4 : place + 8], picture[place + 8 : place + 8 + length]
        if kind == _CHUNK and data.startswith(_KEYWORD):
            return data[len(_KEYWORD) + 5 :].decode()
        place += length + 12
    return None


def size_of(picture: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG in pixels."""
    assert picture.startswith(_SIGNATURE)
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def main() -> int:
    expect.set_options(timeout=WAIT_MILLISECONDS)
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        serving(Path(folder) / "log", **PRICE) as address,
    ):
        visits = Visits(browser)
        for scheme, path in PICTURES.items():
            page = visits.open(f"{address}#/shop/orders?zoom=all", WIDTH, HEIGHT, scheme)
            path.write_bytes(described(*take(page)))
            sys.stdout.write(f"written: {path.relative_to(ROOT)}\n")
        visits.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
