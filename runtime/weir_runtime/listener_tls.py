"""TLS of a listener, whose certificate is read again when its files change."""

import ssl
from pathlib import Path

from .followed_files import FollowedFiles


class ListenerTls:
    """The TLS context of a listener, which new connections use. `OSError` (`SSLError` included) if the files cannot be used;
    later the present certificate stays."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.files = FollowedFiles("WEIR_HTTP_CERTIFICATE_FILE", self._load, lambda _: (certificate, key))

    def _load(self) -> None:
        # First into another context: a certificate that does not fit its key must not spoil the one in use.
        for context in (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), self.context):
            # Without a password an encrypted key would be asked for at the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
