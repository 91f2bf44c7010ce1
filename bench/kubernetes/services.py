"""Weir's services as processes of this machine, with the rights of deploy/k8s in one namespace of a test cluster."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import yaml

from bench.results_file import PROJECT, log
from testbed.kafka import KafkaBroker
from testbed.kubernetes import KubernetesCluster
from testbed.process import free_port
from testbed.redis import RedisServer
from testbed.service import WeirService, loop_settings, wait_all_ready
from weir_contracts import ScalingPolicy
from weir_runtime.http_client import client

LOOP_PARTITIONS = 2
USERS = ("monitor", "executor")
"""Services that have an account in the cluster."""


def rights(service: str) -> list[dict[str, Any]]:
    """Return the rules of a service's role in namespaces of workloads."""
    text = (PROJECT / "deploy" / "k8s" / "target" / f"{service}.yaml").read_text()
    role = next(each for each in yaml.safe_load_all(text) if each["kind"] == "Role")
    return list(role["rules"])


class Services:
    """Services by name, with their own broker and Redis."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        namespace: str,
        folder: Path,
        names: Sequence[str],
        *,
        api_port: int | None = None,
        executor: Mapping[str, str] = MappingProxyType({}),
        runner: str | None = None,
    ) -> None:
        """`executor`: further settings of it. `runner`: a module that runs the services, but the analyzer."""
        self.kafka = KafkaBroker(folder / "kafka")
        self.redis = RedisServer(folder / "redis")
        port = api_port or free_port()
        self.api_url = f"http://127.0.0.1:{port}"
        self.accounts = {name: cluster.identity(name, rights(name), namespace=namespace) for name in USERS}
        loop = loop_settings(self.kafka.bootstrap_servers, LOOP_PARTITIONS, self.api_url, self.redis.url, folder)
        self.by_name: dict[str, WeirService] = {}
        for name in names:
            environment = dict(loop)
            if name in self.accounts:
                access = self.accounts[name]
                environment |= {
                    "WEIR_KUBERNETES_URL": access.url,
                    "WEIR_KUBERNETES_CA_FILE": str(access.ca_file),
                    "WEIR_KUBERNETES_TOKEN_FILE": str(access.token_file),
                    f"WEIR_{name.upper()}_KUBERNETES_NAMESPACES": namespace,
                }
            if name == "executor":
                environment |= executor
            own = port if name == "knowledge" else None
            by = None if name == "analyzer" else runner
            self.by_name[name] = WeirService(name, folder / "services", environment, port=own, runner=by)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.kafka)
            stack.enter_context(self.redis)
            for service in self.by_name.values():
                service.start()
                stack.callback(service.stop)
            wait_all_ready(list(self.by_name.values()), timeout_seconds=300.0)
            log(f"ready: {', '.join(self.by_name)}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def put(self, policies: Sequence[ScalingPolicy]) -> None:
        """Create or replace policies."""
        with client(timeout=10.0) as http:
            for policy in policies:
                url = f"{self.api_url}/v1/policies/{policy.application}"
                http.put(url, json=policy.to_document()).raise_for_status()


def load_average() -> list[float]:
    """Return the machine's load over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]
