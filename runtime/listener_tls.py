"""TLS of a listener, whose certificate is read again when its files change."""

import asyncio
import ssl
from pathlib import Path

import structlog

from .loop import Stop

CHECK_SECONDS = 10.0
"""Between two looks at the files: a certificate is renewed days before it ends."""


class ListenerTls:
    """The TLS context of a listener. `OSError` (`SSLError` included) if the files cannot be used."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._changed = self._state()
        self._load(self.context)

    def _load(self, context: ssl.SSLContext) -> None:
        # Without a password an encrypted key would be asked for at the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")

    def _state(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in (self._certificate, self._key))

    def renew(self) -> bool:
        """Read the files if they changed; return whether they did. New connections use them. `OSError` if they cannot be
        used: the present certificate stays."""
        state = self._state()
        if state == self._changed:
            return False
        # First into a context of its own: a certificate that does not fit its key must not spoil the one in use.
        self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        self._load(self.context)
        self._changed = state
        return True

    async def keep_renewed(self, stop: Stop, check_seconds: float = CHECK_SECONDS) -> None:
        """Renew until stopped. A certificate that cannot be used is logged once for each reason."""
        logger, problem = structlog.get_logger("http"), ""
        while not await stop.wait(check_seconds):
            try:
                renewed = await asyncio.to_thread(self.renew)
            except OSError as error:
                if str(error) != problem:
                    problem = str(error)
                    logger.warning("certificate-unusable", file=str(self._certificate), error=problem)
                continue
            problem = ""
            if renewed:
                logger.info("certificate-renewed", file=str(self._certificate))
