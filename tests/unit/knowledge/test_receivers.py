"""The file of the receivers: what it may say, and what is refused with field and place, never with a value."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from testbed.kubernetes_access import Authority
from weir_knowledge.receivers import SETTING, Receiver, Receivers, read_receivers
from weir_knowledge.settings import KnowledgeSettings
from weir_runtime.reach import USUAL_TARGETS

HOOK = "https://hooks.example.org/services/T0/s3cret"


def written(folder: Path, document: Any) -> Path:
    path = folder / "receivers.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def read(folder: Path, document: Any) -> dict[str, Receiver]:
    return read_receivers(written(folder, document), USUAL_TARGETS)


def test_a_namespace_has_its_own_entry_or_the_one_of_all(tmp_path: Path) -> None:
    """Without either nobody is told."""
    both = {"shop": {"url": HOOK, "late_after": "2m"}, "*": {"url": "http://127.0.0.1:9000/"}}
    receivers = Receivers(written(tmp_path, both), USUAL_TARGETS)
    assert (receivers.entry_of("shop"), receivers.entry_of("carts")) == ("shop", "*")
    assert receivers.late_after("shop") == timedelta(minutes=2)
    assert receivers.late_after("carts") == timedelta(minutes=5)
    alone = Receivers(written(tmp_path, {"shop": {"url": HOOK}}), USUAL_TARGETS)
    assert alone.entry_of("carts") is None and alone.late_after("carts") is None
    assert Receivers(None, USUAL_TARGETS).entry_of("shop") is None


def test_a_changed_token_is_another_receiver(tmp_path: Path) -> None:
    """The file of the header is followed as the file of the entries is; no text of an entry shows either secret."""
    token = tmp_path / "token"
    token.write_text("Bearer first-s3cret\n")
    path = written(tmp_path, {"shop": {"url": HOOK, "authorization_file": str(token)}})
    receivers = Receivers(path, USUAL_TARGETS)
    assert receivers.files is not None and not receivers.files.renew()
    first = receivers.entries["shop"]
    token.write_text("Bearer second-s3cret-is-longer\n")
    assert receivers.files.renew() and receivers.entries["shop"] != first
    assert "s3cret" not in repr(receivers.entries) and receivers.entries["shop"].place == "https://hooks.example.org"
    client = receivers.entries["shop"].client(USUAL_TARGETS)
    assert client.headers["authorization"] == "Bearer second-s3cret-is-longer"


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "must map namespaces, or *, to entries"),
        ({"shop": HOOK}, "shop: must be an object"),
        ({"Shop!": {"url": HOOK}}, "'Shop!' is neither a namespace nor *"),
        ({"shop": {}}, "shop.url: "),
        ({"shop": {"url": HOOK, "token": "s3cret"}}, "shop.token: is not among url, format, authorization_file"),
        ({"shop": {"url": HOOK, "format": "teams"}}, "shop.format: must be 'cloudevents' or 'slack'"),
        ({"shop": {"url": HOOK, "late_after": 300}}, "shop.late_after: must be a duration"),
        ({"shop": {"url": HOOK, "kinds": ["everything"]}}, "shop.kinds.0: "),
        ({"shop": {"url": "http://example.org/s3cret"}}, "shop.url: must be https: http is for loopback only"),
        ({"shop": {"url": "ftp://example.org/s3cret"}}, "shop.url: must be an address such as"),
        ({"shop": {"url": "https://example.org:99999/s3cret"}}, "shop.url: is not an address"),
        ({"shop": {"url": "https://[s3cret/"}}, "shop.url: is not an address"),
        ({"shop": {"url": "https://ada:s3cret@example.org/"}}, "shop.url: must not contain a user"),
        ({"shop": {"url": "https://example.org/s3cret\nHost: x"}}, "shop.url: must consist of visible ASCII"),
        (
            {"shop": {"url": "https://169.254.169.254/s3cret"}},
            "shop.url: 169.254.169.254 is a link-local address, which",
        ),
        ({"shop": {"url": HOOK, "authorization_file": "/nowhere"}}, "authorization_file: cannot read /nowhere"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tmp_path: Path, document: Any, sentence: str) -> None:
    """Setting, file, entry and field; never the address or the token, which are secrets."""
    with pytest.raises(ValueError, match=r"receivers\.json") as caught:
        read(tmp_path, document)
    assert sentence in str(caught.value) and str(caught.value).startswith(SETTING)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("content", ["", " \n", "Bearer a\nX-Other: b", "Bearer \x00", "Bearer ü"])
def test_a_header_is_one_line(tmp_path: Path, content: str) -> None:
    """A line break would begin another header."""
    (tmp_path / "token").write_text(content)
    with pytest.raises(ValueError, match="authorization_file: must have the value of one header"):
        read(tmp_path, {"shop": {"url": HOOK, "authorization_file": str(tmp_path / "token")}})


def test_the_authorities_of_a_receiver_are_pem(tmp_path: Path) -> None:
    """A receiver inside a company has a certificate of its own authority."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ValueError, match=r"ca_file: is not PEM"):
        read(tmp_path, {"shop": {"url": HOOK, "ca_file": str(tmp_path / "ca.pem")}})
    authority = Authority(tmp_path / "authority")
    authority.create()
    assert read(tmp_path, {"shop": {"url": HOOK, "ca_file": str(authority.certificate)}})["shop"].ca_file


def test_the_settings_refuse_what_cannot_be_used(tmp_path: Path) -> None:
    """At the start, with the name of the setting; networks other than those of targets."""
    path = written(tmp_path, {"*": {"url": "https://10.0.0.7/hook"}})
    assert KnowledgeSettings(notifications_file=path).receivers.entry_of("shop") == "*"
    assert len(KnowledgeSettings(notifications_file=path).followed_files) == 1
    with pytest.raises(
        ValidationError, match=r"10\.0\.0\.7 is a private address, which WEIR_KNOWLEDGE_NOTIFICATION_NETWORKS"
    ):
        KnowledgeSettings(notifications_file=path, notification_networks="public")
    with pytest.raises(ValidationError, match="WEIR_KNOWLEDGE_NOTIFICATION_NETWORKS: 'moon' is neither"):
        KnowledgeSettings(notification_networks="moon")
