"""Values for the monitor's tests."""

import json
from pathlib import Path
from typing import Any

from weir_contracts import ScalingPolicy, parse_policy

URL = "http://127.0.0.1:8081"
_RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    """An answer of a Flink 2.2.1 cluster that ran the sample job, as it came."""
    return json.loads((_RECORDED / f"{name}.json").read_text())


def policy(
    application: str = "shop/orders",
    *,
    url: str = URL,
    job: str = "orders",
    kafka: dict[str, Any] | None = None,
    interval: str = "2s",
    mode: str = "advise",
    version: int | None = None,
) -> ScalingPolicy:
    """A policy as a user would write it. `kafka` None: no signals."""
    namespace, name = application.split("/")
    metadata: dict[str, Any] = {"namespace": namespace, "name": name}
    if version is not None:
        metadata["version"] = version
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": metadata,
            "spec": {
                "application": {"flink": {"url": url, "job": job}},
                "signals": {"kafka": kafka} if kafka else {},
                "objective": {"maxLag": "30s"},
                "interval": interval,
                "mode": mode,
            },
        }
    )


def kafka_signals(**more: Any) -> dict[str, Any]:
    """Signals that name a broker."""
    return {"bootstrapServers": "127.0.0.1:9092", **more}
