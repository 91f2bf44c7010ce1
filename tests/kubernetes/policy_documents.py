"""Generated specifications of policies, right and wrong ones: single fields at the edges of their limits, fields that need or
exclude each other, and fields of a wrong type or name."""

import copy
from typing import Any

from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

DURATIONS = ["1s", "30s", "5m", "1h30m", "10m", "60s", "50ms", "2s", "1m", "0.001d", "5s0.001d", "2d", "31d", "366d", "10ms", "1h", "0.05s"]  # fmt: skip  # noqa: E501
ODD_DURATIONS = ["0s", "999ms", "49ms", "49.9999999ms", "61s", "9ms", "3601s", "10m1ms", "367d", "366d1ms", "59s", "32d", "1000000d", "99999999999999999999d", "", "10", "-1s", "1 s", "1.s", ".5s", "1S", "٣s", "1e3s"]  # fmt: skip  # noqa: E501
NAMES = ["orders", "rate", "hpa", "a", "a.b-c", "x" * 63]
ODD_NAMES = ["x" * 64, "Orders", "-a", "a_b", "", "a-", "é"]
URLS = ["http://jm:8081", "https://jm.shop.svc:443/flink", "http://10.0.0.1:8081/", "http://[::1]:8081", "http://jm.", "http://4f66ad9c:8081/a%20b"]  # fmt: skip  # noqa: E501
ODD_URLS = ["http://jm/a b", "http://jm/%zz", "http://jm/é", "http://u:p@jm:8081", "http://jm?x=1", "http://jm/#a", "ftp://jm", "HTTP://jm", "http:jm", "http://jm:0", "http://jm:65536", "http://jm:", "http://jm:08081", "http://", "http:///a", " http://jm", "http://j m", "http://1.2", "http://256.1.1.1", "http://[::1", "http://[:::1]", "http://jöb", "http://jm\\a", "jm:8081", "http://a..b", "http://%61"]  # fmt: skip  # noqa: E501
BROKERS = ["kafka:9092", "a:1,b:65535", "10.0.0.1:9092", "[::1]:9092", "k_1.shop.svc:9092"]
ODD_BROKERS = ["kafka", "kafka:0", "kafka:65536", "kafka:09092", "a:1,", ",a:1", "a:1 ,b:2", "u@a:1", "a:1/b", "a\x1b:1", "", "é:1", "a:٣"]  # fmt: skip  # noqa: E501
SIZES = ["512Mi", "4Gi", "1.5Gi", "16G", "1k", "0.001Ki", 1, 1024, 2**60, "1048576Ti"]
ODD_SIZES = ["0Gi", "4", "4gi", "1.0005k", "1048577Ti", "999999999999999T", 0, 2**60 + 1, -1, "", "4 Gi", "0.0001Ki", "1e3k"]  # fmt: skip
CRONS = ["0 22 * * *", "*/5 8-18 * * 1-5", " 0  0 1 1 * ", "0\t0 * * *"]
ODD_CRONS = ["", "0 0 * *", "0 0 * * * *"]
CLOCK = ["22:00", "06:30", "00:00"]
ODD_CLOCK = ["24:00", "7:00", "07:60", "22:00:00", "٢٢:00"]
SIGNALS = ["done", "queued", "a_1"]
ODD_SIGNALS = ["Done", "1a", "a-b", "x" * 64, ""]
WORKLOADS = ["orders", "parse", "sink"]
ODD_WORKLOADS = ["x" * 254, "A", "-a", ""]
NO_VALUES: list[Any] = [None, "", 0, -1, True, [], {}, "x", 1.5]
ODD_ONE_IN = 60
"""Values of which one is odd."""


def _mostly(usual: list[Any], odd: list[Any], null: bool = False) -> Strategy:
    """Return a value, in few cases one that is refused, or null."""
    odd = [*odd, *[None] * null]
    many = usual * (ODD_ONE_IN * len(odd) // len(usual) // 2 + 1)
    return st.sampled_from([*many, *odd, *many])  # the first and the last are drawn more often


def _rarely(usual: Strategy, odd: Strategy) -> Strategy:
    return st.sampled_from([*[usual] * 8, odd, *[usual] * 8]).flatmap(lambda each: each)


def _number(usual: list[int], low: int, high: int, null: bool = False) -> Strategy:
    return _mostly([*usual, *usual, low, high], [low - 1, high + 1, "4", 2.5], null)


def _small(high: int, null: bool = False) -> Strategy:
    return _number([1, 1, 2, 3], 1, high, null)


def _large(high: int, null: bool = False) -> Strategy:
    return _number([4, 32, 40], 2, high, null)


def _fields(**fields: Strategy) -> Strategy:
    """Return a mapping with some of the fields."""
    return st.fixed_dictionaries({}, optional={name.rstrip("_"): field for name, field in fields.items()})


def _within(*usual: str, null: bool = False) -> Strategy:
    """Return a duration of a field with limits of its own."""
    return _mostly([*usual], [each for each in (*DURATIONS, *ODD_DURATIONS) if each not in usual], null)


_duration = _mostly(DURATIONS, ODD_DURATIONS)
_limit = _within("1s", "30s", "5m", "0.001d", "366d", "1000ms")
_nullable_limit = _within("1s", "30s", null=True)
_name = _mostly(NAMES, ODD_NAMES)
_url = _mostly(URLS, ODD_URLS)
_signal = _mostly(SIGNALS, ODD_SIGNALS, null=True)
_workload = _mostly(WORKLOADS, ODD_WORKLOADS)
_group_id = _mostly(["orders", "totals"], ["", "x" * 250])

_utilization = _mostly([0.01, 0.7, 1], [0, 1.01, "0.7", None])
_lag_metric = _mostly(["currentFetchEventTimeLag", "watermarkLag"], ["pendingRecords", ""], null=True)
_objective = _rarely(
    st.one_of(
        *(st.fixed_dictionaries({name: _limit}) for name in ("maxLag", "maxLatency")),
        st.fixed_dictionaries({"maxLag": _limit, "lagMetric": _lag_metric}),
        st.fixed_dictionaries({"utilization": _utilization}),
    ),
    _fields(maxLag=_nullable_limit, maxLatency=_nullable_limit, utilization=_utilization, lagMetric=_lag_metric),
)
_flink = st.fixed_dictionaries(
    {"url": _url, "job": _mostly(["orders"], ["", "x" * 301, "0f" * 16])}, optional={"credentials": _name}
)
_service_signals = _fields(processed=_signal, waiting=_signal)
_service = _fields(
    processed=_signal, waiting=_signal, operators=st.dictionaries(_workload, _service_signals, max_size=2)
)
_streams = st.fixed_dictionaries(
    {"applicationId": _mostly(["orders", "totals"], ["", "a b"])},
    optional={
        "metrics": st.fixed_dictionaries(
            {"port": _large(65535)}, optional={"path": _mostly(["/metrics"], ["m", "/a b"])}
        ),
        "commitInterval": _within("10ms", "1s", "1h", null=True),
    },
)
_group = st.fixed_dictionaries({"groupId": _group_id})
_kind = _mostly(["Deployment", "StatefulSet"], ["deployment", ""])
_api_version = _mostly(["apps/v1", "v1"], ["apps", "a/b/v1"], null=True)
_workload_of_several = st.fixed_dictionaries(
    {"kind": _kind, "name": _workload},
    optional={"apiVersion": _api_version, "inputs": st.lists(st.just("orders"), max_size=1)},
)
_several = _rarely(
    st.lists(_workload_of_several, min_size=1, max_size=3, unique_by=lambda each: each["name"]).map(
        lambda each: [{**each[0], "inputs": []}, *each[1:]]
    ),
    st.lists(_workload_of_several, max_size=3),
)
_slots = _mostly([1, 1, 2, 4], [0, 1024, 1025, "2", None])
_restarts = _mostly([False, False, True], ["true", None])
_namespace = _mostly(["shop"], ["a.b"], null=True)
_single = st.fixed_dictionaries(
    {"kind": _kind, "name": _workload},
    optional={
        "apiVersion": _api_version,
        "namespace": _namespace,
        "slots": _slots,
        "restartInstances": _restarts,
    },
)
_kubernetes = _rarely(
    st.one_of(_single, st.fixed_dictionaries({"workloads": _several})),
    _fields(kind=_kind, name=_workload, apiVersion=_api_version, slots=_slots, workloads=st.none() | _several),
)
_endpoint = st.fixed_dictionaries(
    {"url": _url},
    optional={"credentials": _name, "slots": _slots, "restartInstances": _restarts},
)
_manager_pods = st.fixed_dictionaries(
    {"kind": _kind, "name": _workload}, optional={"apiVersion": _api_version, "namespace": _namespace}
)
_manager_instances = st.fixed_dictionaries({"url": _url}, optional={"credentials": _name})
_manager_limits: dict[str, Strategy] = {"max": _small(1000)}
_pool: dict[str, Strategy] = {"slots": _slots, "reactive": _mostly([False, True], ["true", None])}
_managers = _rarely(
    st.fixed_dictionaries({**_manager_limits, "kubernetes": _manager_pods}, optional=_pool)
    | st.fixed_dictionaries({**_manager_limits, "endpoint": _manager_instances}, optional=_pool),
    _fields(
        **_manager_limits,
        kubernetes=st.none() | _manager_pods,
        endpoint=st.none() | _manager_instances,
        **_pool,
    ),
)
_managed = st.fixed_dictionaries({"taskManagers": _managers})
_again = st.fixed_dictionaries(
    {
        "jar": _mostly(["orders.jar", "7f_orders 1.jar"], ["orders", "a/b.jar", " a.jar"]),
        "savepointDirectory": _mostly(["s3://state", "/savepoints"], ["state", "s3://state?a=b", "s3://a b"]),
    },
    optional={
        "entryClass": _mostly(["shop.Orders"], ["shop.", "a b", "1a"], null=True),
        "args": st.lists(_mostly(["--topic", "a b", ""], ["x" * 2001, None, 1]), max_size=3),
        "uniform": _mostly([False, True], ["true", None]),
    },
)
_resubmitted = _rarely(st.fixed_dictionaries({"resubmit": _again}), _fields(resubmit=_again, taskManagers=_managers))
_adaptive = _mostly([{}], [{"taskManagers": None}, {"resubmit": None}]) | _managed | _resubmitted
_operated = st.fixed_dictionaries({"name": _workload}, optional={"namespace": _namespace})
_kafka = st.fixed_dictionaries(
    {"bootstrapServers": _mostly(BROKERS, ODD_BROKERS)},
    optional={
        "groupId": _mostly(["orders", "totals"], ["", "x" * 250], null=True),
        "topics": st.none() | st.lists(_mostly(["orders"], ["a b", ""]), max_size=2),
        "isolation": _mostly(["read_committed", "read_uncommitted"], ["no", None]),
        "credentials": _name,
    },
)
_prometheus = st.fixed_dictionaries(
    {
        "url": _url,
        "queries": st.dictionaries(_mostly(SIGNALS, ODD_SIGNALS), _mostly(["sum(x)"], ["", "x" * 2001]), max_size=3),
    }
)
_engines = _fields(
    flink=st.none() | _flink, service=st.none() | _service, kafkaStreams=_streams, consumerGroup=st.none() | _group
)
_targets = _fields(
    flink=st.none() | _adaptive,
    flinkDeployment=st.none() | _operated,
    flinkSessionJob=st.none() | _operated,
    kubernetes=st.none() | _kubernetes,
    endpoint=st.none() | _endpoint,
)
_sources = _fields(kafka=st.none() | _kafka, prometheus=st.none() | _prometheus)
_of_kubernetes, _of_endpoint = (
    st.fixed_dictionaries({"kubernetes": _kubernetes}),
    st.fixed_dictionaries({"endpoint": _endpoint}),
)
_of_operator = st.fixed_dictionaries({"flinkDeployment": _operated}) | st.fixed_dictionaries(
    {"flinkSessionJob": _operated}
)
_job = _rarely(
    st.one_of(
        st.fixed_dictionaries(
            {"application": st.fixed_dictionaries({"flink": _flink})},
            optional={
                "target": st.fixed_dictionaries({"flink": _adaptive}) | _of_operator | _of_kubernetes,
                "signals": _sources,
            },
        ),
        st.fixed_dictionaries(
            {
                "application": st.fixed_dictionaries({"flink": _flink}),
                "target": st.fixed_dictionaries({"flink": _managed}) | _of_operator,
            },
            optional={"signals": _sources},
        ),
        st.fixed_dictionaries(
            {"target": st.fixed_dictionaries({"flinkDeployment": _operated})}, optional={"signals": _sources}
        ),
        st.fixed_dictionaries(
            {
                "target": _of_kubernetes,
                "signals": st.fixed_dictionaries({"prometheus": _prometheus}, optional={"kafka": _kafka}),
            },
            optional={"application": st.fixed_dictionaries({"service": _service})},
        ),
        st.fixed_dictionaries(
            {
                "application": st.fixed_dictionaries({"kafkaStreams": _streams})
                | st.fixed_dictionaries({"consumerGroup": _group}),
                "signals": st.fixed_dictionaries({"kafka": _kafka}, optional={"prometheus": _prometheus}),
            },
            optional={"target": _of_kubernetes | _of_endpoint},
        ),
    ),
    st.fixed_dictionaries({}, optional={"application": _engines, "target": _targets, "signals": _sources}),
)
_bounds = _fields(
    min=_small(32768),
    max=_large(32768),
    total=st.none() | _fields(min=_small(1_000_000, null=True), max=_large(1_000_000, null=True)),
    operators=st.dictionaries(
        _mostly(["enrich", "é #2"], ["", "x" * 401]),
        _fields(min=_small(32768, null=True), max=_large(32768, null=True)),
        max_size=1,
    ),
)
_odd_cores = [0, -1, 1_000_001, "4"]
_per_slot = _rarely(
    st.fixed_dictionaries({"cpu": _mostly([0.1, 0.25, 1], _odd_cores), "memory": _mostly(SIZES, ODD_SIZES)}),
    _fields(cpu=_mostly([4], _odd_cores, null=True), memory=_mostly(SIZES, ODD_SIZES, null=True)),
)
_budget = _fields(slots=_large(1_000_000, null=True)) | st.fixed_dictionaries(
    {"perSlot": _per_slot},
    optional={
        "slots": _large(1_000_000, null=True),
        "cpu": _mostly([0.75, 1, 4, 1_000_000], _odd_cores, null=True),
        "memory": _mostly(SIZES, ODD_SIZES, null=True),
    },
)
_parameters = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1, "x", [0.5], {"c": None}]), max_size=2)
_choice = st.fixed_dictionaries(
    {"name": _name}, optional={"parameters": _parameters, "label": _mostly(NAMES, ODD_NAMES, null=True)}
)
_fallback = st.fixed_dictionaries({"name": _name}, optional={"parameters": _parameters})
_planner = _fields(
    name=_name, parameters=_parameters, timeout=_within("50ms", "2s", "60s", "0.05s"), fallback=st.none() | _fallback
)
_length = _within("1m", "2d", "31d", "1h30m", "60s")
_zone = {
    "timeZone": st.sampled_from(["UTC", "Europe/Berlin"]),
    "directions": _mostly([["up"], ["up", "down"]], [[], ["on"], ["up"] * 3]),
}
_period = _rarely(
    st.fixed_dictionaries({"cron": _mostly(CRONS, ODD_CRONS), "duration": _length}, optional=_zone)
    | st.fixed_dictionaries(
        {"from": _mostly(CLOCK[:2], ODD_CLOCK), "to": _mostly(CLOCK[2:], ODD_CLOCK)}, optional=_zone
    ),
    _fields(
        cron=st.sampled_from([*CRONS, None]),
        duration=_within("1m", null=True),
        from_=st.sampled_from([*CLOCK, None]),
        to=st.sampled_from([*CLOCK, None]),
    ),
)
_step = {
    "stabilization": _duration,
    "maxStep": _large(32768, null=True),
    "maxFactor": _mostly([1.5, 2, 32768], [1, 0.5, 32769, "2"], null=True),
}
_behavior = _fields(
    scaleUp=_fields(**_step, ineffectiveHold=_duration),
    scaleDown=_fields(**_step, inputOutageHold=_duration, reversalHold=_duration, forecastHold=_duration),
    cooldown=_duration,
    tolerance=_mostly([0, 0.1, 0.5], [-0.1, 0.51, "0"]),
    maxActionsPerHour=_small(60, null=True),
    excludedPeriods=st.lists(_period, max_size=2),
)


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value below a node."""
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += _paths(value, (*path, key))
    return found


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A specification, in a quarter of the cases with a value that is removed, renamed or replaced by another one."""
    rest = st.fixed_dictionaries(
        {"objective": _objective},
        optional={
            "bounds": _bounds,
            "budget": _budget,
            "planner": _planner,
            "candidates": st.lists(_choice, max_size=2),
            "shadows": st.lists(_choice, max_size=2),
            "behavior": _behavior,
            "interval": _within("1s", "30s", "10m", "0.001d", "5s0.001d"),
            "mode": _mostly(["advise", "act", "paused"], ["on", None]),
        },
    )
    spec: dict[str, Any] = {**draw(_job), **draw(rest)}
    spec = copy.deepcopy(spec)  # sampled values are shared
    if draw(st.sampled_from([False, True, False, False])):
        *above, last = draw(st.sampled_from(_paths(spec)))
        holder: Any = spec
        for key in above:
            holder = holder[key]
        how = draw(st.sampled_from(["remove", "rename", "replace"]))
        value = draw(st.sampled_from(NO_VALUES)) if how == "replace" else holder.pop(last)
        if how == "replace":
            holder[last] = copy.deepcopy(value)
        elif how == "rename" and isinstance(holder, dict):
            holder[f"{last}x"] = value
    return spec
