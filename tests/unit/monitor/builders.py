"""Values for the monitor's tests."""

from typing import Any

from weir_contracts import ScalingPolicy, parse_policy

URL = "http://127.0.0.1:8081"


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
