"""A Prometheus that finds a trial's services by itself and scrapes them, with the rules as they are shipped."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import yaml

from testbed.process import TestbedError, wait_until
from testbed.register import living
from tests.integration.monitoring.prometheus import Prometheus
from tests.unit.deploy.queries import MONITORING

SERVICES = ("monitor", "analyzer", "planner", "executor", "knowledge")


class Scraped:
    """Scraped metrics of one trial, which can be queried after its end until `close`."""

    def __init__(self, trial: Path, folder: Path) -> None:
        self.trial = trial
        self._folder = folder
        self._finder = threading.Thread(target=self._find, name="find-services", daemon=True)
        self.prometheus: Prometheus | None = None
        self.began = self.ended = datetime.now(UTC)

    def follow(self) -> None:
        """Begin to look for the services; scraping starts when all are there."""
        self._finder.start()

    def stopped(self) -> None:
        """The trial is over: what was scraped stays to be asked."""
        self.ended = datetime.now(UTC)
        if self.prometheus is not None:
            self.prometheus.reconfigure("{}")

    def close(self) -> None:
        if self._finder.ident is not None:
            self._finder.join(timeout=180)
        if self.prometheus is not None:
            self.prometheus.stop()

    def _find(self) -> None:
        with contextlib.suppress(TestbedError):  # then there is no Prometheus, and the tests that want it say so
            ports = wait_until(self._ports, timeout_seconds=150, what="the trial's services")
            self._folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(MONITORING / "prometheus" / "alerts.yml", self._folder)
            self.prometheus = Prometheus(self._folder, _configuration(ports)).start()
            self.began = datetime.now(UTC)

    def _ports(self) -> dict[str, int] | None:
        found = dict(self._listening())
        return found if set(found) == set(SERVICES) else None

    def _listening(self) -> Iterator[tuple[str, int]]:
        for started in living(self.trial / "runs"):
            if started.name in SERVICES:
                with contextlib.suppress(psutil.Error, KeyError):
                    yield started.name, int(psutil.Process(started.pid).environ()["WEIR_HTTP_PORT"])


def _configuration(ports: dict[str, int]) -> str:
    """As shipped, but for where the services are and their token, which a trial does not have, and with a sample every 5 s:
    a trial is short."""
    shipped = yaml.safe_load((MONITORING / "prometheus" / "prometheus.yml").read_text())
    shipped["global"] |= {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "5s"}
    for job in shipped["scrape_configs"]:
        del job["dns_sd_configs"], job["authorization"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{ports[job['job_name'].removeprefix('weir-')]}"]}]
    return str(yaml.safe_dump(shipped))
