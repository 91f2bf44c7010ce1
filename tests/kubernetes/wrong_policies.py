"""Specifications of policies that no reader accepts, each with words of the API server's sentence."""

from typing import Any

LAG: dict[str, Any] = {"objective": {"maxLag": "30s"}}
FLINK: dict[str, Any] = {"application": {"flink": {"url": "http://jm:8081", "job": "orders"}}}
KAFKA: dict[str, Any] = {"signals": {"kafka": {"bootstrapServers": "kafka:9092"}}}
STREAMS: dict[str, Any] = {"application": {"kafkaStreams": {"applicationId": "orders"}}}
WORKLOAD: dict[str, Any] = {"target": {"kubernetes": {"kind": "Deployment", "name": "orders"}}}
RESUBMIT: dict[str, Any] = {"jar": "orders.jar", "savepointDirectory": "s3://state/savepoints"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**LAG}, "application: is required"),
    ({**LAG, "target": {"flink": {}}}, "application: is required"),
    ({**FLINK, "objective": {}}, "give exactly one of maxLag"),
    ({**FLINK, "objective": {"maxLag": "30s", "utilization": 0.7}}, "give exactly one of maxLag"),
    ({**FLINK, "objective": {"maxLatency": "30s", "lagMetric": "watermarkLag"}}, "lagMetric needs maxLag"),
    ({**FLINK, "objective": {"maxLag": "500ms"}}, "maxLag must be at least 1s"),
    ({**FLINK, "objective": {"utilization": 0}}, "must lie between 0.01 and 1"),
    ({**LAG, "application": {"flink": {"url": "http://weir:secret@jm:8081", "job": "orders"}}}, "without credentials"),
    ({**LAG, "application": {"flink": {"url": "http://jm:8081?token=secret", "job": "orders"}}}, "without credentials"),
    ({**LAG, "application": {"flink": {"url": "ftp://jm", "job": "orders"}}}, "must be an http or https address"),
    ({**LAG, "application": {**FLINK["application"], **STREAMS["application"]}}, "name exactly one engine"),
    ({**LAG, "application": {}}, "name exactly one engine"),
    ({**LAG, "target": {}}, "name exactly one driver"),
    (
        {**LAG, **FLINK, "target": {"endpoint": {"url": "http://supervisor"}}},
        "needs an application that is a consumer group",
    ),
    (
        {**LAG, **FLINK, "target": {"flink": {"taskManagers": {"max": 4}}}},
        "name exactly one of kubernetes and endpoint",
    ),
    ({**LAG, **FLINK, "target": {"flink": {"taskManagers": {**WORKLOAD["target"]}}}}, "max"),
    (
        {**LAG, **FLINK, "target": {"flink": {"taskManagers": {**WORKLOAD["target"], "max": 3}}}, "bounds": {"min": 4}},
        "allows fewer slots than bounds.min requires",
    ),
    (
        {
            **LAG,
            **FLINK,
            "target": {"flink": {"taskManagers": {**WORKLOAD["target"], "slots": 3, "max": 9, "reactive": True}}},
            "bounds": {"min": 4, "max": 5},
        },
        "no number of instances of target.flink.taskManagers",
    ),
    (
        {**LAG, **FLINK, "target": {"flink": {"resubmit": RESUBMIT, "taskManagers": {**WORKLOAD["target"], "max": 4}}}},
        "resubmit: not together with taskManagers",
    ),
    (
        {
            **LAG,
            "application": {"flink": {"url": "http://jm:8081", "job": "5f6d1e2b0c9a4f3e8d7c6b5a49382716"}},
            "target": {"flink": {"resubmit": RESUBMIT}},
        },
        "must be the job's name",
    ),
    (
        {
            **LAG,
            **FLINK,
            "target": {"flink": {"resubmit": {**RESUBMIT, "uniform": True}}},
            "bounds": {"operators": {"enrich": {"max": 4}}},
        },
        "have the same parallelism",
    ),
    ({**LAG, **FLINK, "target": {"flink": {"resubmit": {"jar": "orders.jar"}}}}, "savepointDirectory"),
    ({**LAG, **FLINK, "target": {"flink": {"resubmit": {**RESUBMIT, "jar": "up/orders.jar"}}}}, "jar"),
    (
        {**LAG, **FLINK, "target": {"flink": {"resubmit": {**RESUBMIT, "savepointDirectory": "state"}}}},
        "savepointDirectory",
    ),
    ({**LAG, "application": {"service": {}}, "target": {"flink": {}}}, "needs a kubernetes target"),
    ({**LAG, "target": {"flinkSessionJob": {"name": "orders"}}}, "application: is required"),
    ({**LAG, "target": {"flinkDeployment": {"name": "orders"}, "flink": {}}}, "name exactly one driver"),
    ({**LAG, **STREAMS, **KAFKA, "target": {"flinkDeployment": {"name": "orders"}}}, "do not scale consumer groups"),
    ({**LAG, **STREAMS, **KAFKA, "mode": "act"}, "act needs a target that scales the group's instances"),
    ({**LAG, **STREAMS, **KAFKA, "target": {"flink": {}}}, "do not scale consumer groups"),
    ({**LAG, **FLINK, "target": {}}, "name exactly one driver"),
    ({**LAG, **STREAMS, **WORKLOAD}, "needs signals.kafka"),
    ({**LAG, "target": {"kubernetes": {"kind": "Deployment"}}}, "name kind and name"),
    (
        {
            **LAG,
            "target": {
                "kubernetes": {"kind": "Deployment", "name": "a", "workloads": [{"kind": "Deployment", "name": "a"}]}
            },
        },
        "list workloads",
    ),
    ({**LAG, "target": {"kubernetes": {"kind": "Deployment", "name": "orders", "slots": 2}}}, "a service has no slots"),
    (
        {**LAG, **FLINK, "target": {"kubernetes": {"workloads": [{"kind": "Deployment", "name": "a"}]}}},
        "are one workload",
    ),
    ({**LAG, **FLINK, "bounds": {"min": 8, "max": 4}}, "min must not be above max"),
    ({**LAG, **FLINK, "bounds": {"min": 64}}, "min must not be above max"),
    ({**LAG, **WORKLOAD, "bounds": {"operators": {"orders": {"max": 3}}}}, "use bounds.min and bounds.max"),
    ({**LAG, **FLINK, "interval": "11m"}, "interval must lie between 1s and 10m"),
    ({**LAG, **FLINK, "interval": "1d"}, "interval must lie between 1s and 10m"),
    ({**LAG, **FLINK, "planner": {"timeout": "2m"}}, "timeout must lie between 50ms and 60s"),
    (
        {**LAG, **FLINK, "signals": {"kafka": {"bootstrapServers": "kafka:9092,kafka:99999"}}},
        "each port must lie between 1 and 65535",
    ),
    ({**LAG, **FLINK, "candidates": [{"name": "hpa"}, {"name": "hpa"}]}, "two have the same name"),
    ({**LAG, **FLINK, "candidates": [{"name": "hpa"}], "shadows": [{"name": "hpa"}]}, "has the name of a candidate"),
    ({**LAG, **FLINK, "budget": {"cpu": 4}}, "cpu needs perSlot.cpu"),
    ({**LAG, **WORKLOAD, "application": {"service": {"processed": "done"}}}, "has no such name"),
    (
        {
            "objective": {"maxLag": "30s"},
            **FLINK,
            "signals": {"prometheus": {"url": "http://a:b@prometheus:9090", "queries": {"done": "1"}}},
        },
        "without credentials",
    ),
    ({**LAG, **FLINK, "interval": "0.007d"}, "interval must lie between 1s and 10m"),
    ({**LAG, **FLINK, "behavior": {"cooldown": "367d"}}, "must lie between 0s and 366d"),
    ({**LAG, **FLINK, "behavior": {"excludedPeriods": [{"from": "22:00"}]}}, "give either cron and duration"),
    (
        {**LAG, **FLINK, "behavior": {"excludedPeriods": [{"from": "22:00", "to": "22:00"}]}},
        "from and to must differ",
    ),
    (
        {**LAG, **FLINK, "behavior": {"excludedPeriods": [{"cron": "0 22 * *", "duration": "2h"}]}},
        "must have five fields",
    ),
    (
        {**LAG, **FLINK, "behavior": {"excludedPeriods": [{"cron": "0 22 * * *", "duration": "59s"}]}},
        "must lie between 1m and 31d",
    ),
    ({**LAG, **FLINK, "bounds": {"min": 2, "total": {"max": 1}}}, "total.max for all operators together"),
    ({**LAG, **FLINK, "bounds": {"operators": {"enrich": {"min": 33}}}}, "operators: min must not be above max"),
    ({**LAG, **FLINK, "bounds": {"operators": {"": {"min": 3}}}}, "names have 1 to 400 characters"),
    (
        {
            **LAG,
            **WORKLOAD,
            **STREAMS,
            **KAFKA,
            "target": {"kubernetes": {**WORKLOAD["target"]["kubernetes"], "slots": 64}},
        },
        "no number of instances",
    ),
    ({**LAG, **FLINK, "budget": {"cpu": 1, "perSlot": {"cpu": 2}}}, "cpu is less than a single slot takes"),
    (
        {**LAG, **FLINK, "budget": {"memory": "1Gi", "perSlot": {"memory": "1025Mi"}}},
        "memory is less than a single slot takes",
    ),
    ({**LAG, **FLINK, "budget": {"memory": "1048577Ti", "perSlot": {"memory": 1}}}, "must be a size with a unit"),
    (
        {**LAG, **FLINK, "bounds": {"min": 3}, "budget": {"memory": "4Gi", "perSlot": {"memory": "1.5Gi"}}},
        "budget.memory: allows fewer slots than bounds.min requires",
    ),
    ({**LAG, **FLINK, "bounds": {"min": 3}, "budget": {"slots": 2}}, "budget.slots: allows fewer slots"),
    ({**LAG, **FLINK, "candidates": [{"name": "rate"}]}, "has the name of the planner"),
    (
        {**LAG, **STREAMS, "signals": {"kafka": {**KAFKA["signals"]["kafka"], "groupId": "totals"}}},
        "must not name another group than the application",
    ),
    (
        {**LAG, "target": {"kubernetes": {**WORKLOAD["target"]["kubernetes"], "restartInstances": True}}},
        "only an application that is a consumer group has instances",
    ),
    (
        {**LAG, "target": {"kubernetes": {"workloads": [{"kind": "Deployment", "name": "a"}] * 2}}},
        "two have the same name",
    ),
    (
        {**LAG, "target": {"kubernetes": {"workloads": [{"kind": "Deployment", "name": "a", "inputs": ["b"]}]}}},
        "each must be listed before",
    ),
    (
        {**LAG, **WORKLOAD, "application": {"service": {"operators": {"other": {}}}}},
        "target.kubernetes has no such workload",
    ),
    (
        {
            **LAG,
            **WORKLOAD,
            "application": {"service": {"processed": "done", "operators": {"orders": {"processed": "done"}}}},
            "signals": {"prometheus": {"url": "http://prometheus:9090", "queries": {"done": "1"}}},
        },
        "are of the only source",
    ),
    (
        {**LAG, **FLINK, "signals": {"prometheus": {"url": "http://prometheus:9090", "queries": {"Done": "1"}}}},
        "names of signals are",
    ),
    (
        {**LAG, "application": {"kafkaStreams": {"applicationId": "orders", "commitInterval": "9ms"}}, **KAFKA},
        "must lie between 10ms and 1h",
    ),
    ({**LAG, "application": {"flink": {"url": "http://1.2", "job": "orders"}}}, "must be an http or https address"),
]
