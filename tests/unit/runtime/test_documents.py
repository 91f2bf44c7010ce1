"""Reading users' YAML: aliases, which a small file can make large with."""

import json
import tracemalloc
from pathlib import Path

import pytest

from weir_runtime.documents import Unreadable, read_files, read_yaml

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Three hundred bytes that stand for a billion (CVE-2019-11253 of Kubernetes' API server)."""


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "a: &a {k: " + "v" * 1000 + ", l: &b [1, 2]}\nb: &c {<<: *a, m: *b}\n" + f"c: [{', '.join(['*c'] * 1000)}]\n",
        f"a: &a {'x' * 20_000}\nb: [{', '.join(['*a'] * 60)}]\n",
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
    ],
    ids=["nested", "merged", "long-text", "list-in-itself", "mapping-in-itself"],
)
def test_aliases_that_stand_for_too_much_are_refused(text: str) -> None:
    """One sentence, before anything is expanded."""
    tracemalloc.start()
    with pytest.raises(Unreadable, match="its aliases stand for more than 1,000,000 characters") as refused:
        read_yaml(text, aliases=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.line == 1
    assert len(str(refused.value)) <= 160
    assert peak < 1000 * len(text) + 10_000_000


def test_a_file_may_name_its_parts(tmp_path: Path) -> None:
    """Aliases and merge keys, as in files for kubectl; text without them has no such limit."""
    file = tmp_path / "policies.yaml"
    file.write_text("base: &base {maxLag: 30s}\none: *base\ntwo: {<<: *base, maxLag: 10s}\n")
    found = read_files(file)
    assert found == [{"base": {"maxLag": "30s"}, "one": {"maxLag": "30s"}, "two": {"maxLag": "10s"}}]
    long = json.dumps({"a": "x" * 1_100_000})
    assert len(read_yaml(long, aliases=True)[0]["a"]) == 1_100_000
