"""The compose file, read as text: what every container must have, and that each name in it exists elsewhere."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from testbed.supervisor.__main__ import main as supervisor
from weir_analyzer.settings import AnalyzerSettings
from weir_contracts import parse_policy
from weir_executor.settings import Settings as ExecutorSettings
from weir_knowledge.settings import KnowledgeSettings
from weir_monitor.settings import MonitorSettings
from weir_planner.settings import PlannerSettings
from weir_runtime.settings import variable
from weir_runtime.topics import TopicsSettings

PROJECT = Path(__file__).resolve().parents[3]
FOLDER = PROJECT / "deploy" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
MEGABYTES = {"m": 1, "g": 1024}
SETTINGS: dict[str, type[BaseSettings]] = {
    "monitor": MonitorSettings,
    "analyzer": AnalyzerSettings,
    "planner": PlannerSettings,
    "executor": ExecutorSettings,
    "knowledge": KnowledgeSettings,
    "topics": TopicsSettings,
    "sample-topics": TopicsSettings,
    "streams-topics": TopicsSettings,
}
OURS = [
    *SETTINGS,
    *("load", "sample-job", "prepare", "policy"),
    *("streams-load", "streams-supervisor", "streams-policy"),
]
JOBS = ("prepare", "topics", "sample-topics", "policy", "streams-topics", "streams-policy")
WEIR = ("monitor", "analyzer", "planner", "executor", "knowledge")


def dotenv() -> dict[str, str]:
    lines = (FOLDER / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose(**shell: str) -> dict[str, Any]:
    """Return Compose's configuration with .env filled in; variables of the shell take precedence."""
    values = {**dotenv(), **shell}
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], TEXT))
    return found


STACK = compose()
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
EACH = pytest.mark.parametrize("service", [pytest.param(service, id=name) for name, service in SERVICES.items()])


def megabytes(service: dict[str, Any]) -> int:
    limit = service["mem_limit"]
    return int(limit[:-1]) * MEGABYTES[limit[-1]] * int(service.get("scale", 1))


def test_every_variable_has_a_value_and_every_value_a_use() -> None:
    """In .env alone: a default written twice is one that is wrong somewhere. Compose itself uses the project's name."""
    assert {"COMPOSE_PROJECT_NAME", *re.findall(r"\$\{(\w+)[^}]*\}", TEXT)} == dotenv().keys()


@EACH
def test_every_container_is_bounded(service: dict[str, Any]) -> None:
    """Memory, processor and processes: one that runs wild takes the machine with it."""
    assert megabytes(service) > 0
    assert 0 < service["cpus"] <= 2
    assert service["pids_limit"] > 0


def test_all_of_it_fits_a_laptop_of_8_gb() -> None:
    """Even with every container at its limit there is something left for the system."""
    assert limits() < 6.75 * 1024


def limits(profile: str | None = None) -> int:
    """Return the sum of the memory limits of all services, without a profile or with this one alone, in MiB."""
    wanted = None if profile is None else [profile]
    return sum(megabytes(s) for name, s in SERVICES.items() if s.get("profiles") == wanted and name not in JOBS)


def test_the_readme_has_the_memory_limits() -> None:
    """The sums of the default services, and of each profile."""
    readme = re.sub(r"\s+", " ", (FOLDER / "README.md").read_text())
    every = {profile for s in SERVICES.values() for profile in s.get("profiles", [])}
    assert every == {"monitoring", "kafka-streams"}
    gigabytes = {profile: f"{limits(profile) * 2**20 / 1e9:.1f} GB" for profile in every}
    assert f"All limits together are {limits() * 2**20 / 1e9:.1f} GB ({limits() / 1024:.2f} GiB)" in readme
    assert f"monitoring {gigabytes['monitoring']}, " in readme
    assert all(f"`{profile}` {gigabytes[profile]}" in readme for profile in every - {"monitoring"})


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_a_health_check(name: str) -> None:
    """Its own or its image's; a container that runs once has an exit code instead."""
    check = SERVICES[name]["healthcheck"]
    if name in JOBS:
        assert check == {"disable": True}
        assert SERVICES[name]["restart"] == "no"
        return
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert check["interval"]
    if "test" not in check:
        image = SERVICES[name]["image"]
        build = next(s["build"] for s in SERVICES.values() if s["image"] == image and "build" in s)
        text = (PROJECT / build["dockerfile"]).read_text()
        stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
        final = next(s for s in stages if s.splitlines()[0].endswith(f" AS {build['target']}"))
        assert "HEALTHCHECK" in final


def test_what_is_waited_for_is_there() -> None:
    """Health-ordered: nothing starts before what it needs; a job is waited for to its end, everything else until it is
    well."""
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed in JOBS else "service_healthy"
            assert how == {"condition": wanted}
            assert needed in SERVICES


def test_only_the_knowledge_api_is_published_and_only_on_this_machine() -> None:
    """Grafana is added by the profile monitoring."""
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert published == {"knowledge": ["127.0.0.1:8080:8080"], "grafana": ["127.0.0.1:3000:3000"]}
    assert SERVICES["grafana"]["profiles"] == ["monitoring"]


@EACH
def test_every_image_is_a_variable_with_a_version(service: dict[str, Any]) -> None:
    """`latest` is another program every month."""
    _, _, tag = service["image"].partition(":")
    assert tag
    assert "latest" not in tag
    assert all(line.strip().startswith("image: ${WEIR_") for line in TEXT.splitlines() if "image:" in line)


@pytest.mark.parametrize("name", OURS)
def test_ours_may_do_nothing_to_the_system(name: str) -> None:
    """No capability, no new rights, nothing to write to but what is mounted. The first start may give files away."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["CHOWN"] if name == "prepare" else [])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "privileged" not in service
    assert all(volume.endswith(":ro") for volume in service.get("volumes", []) if "secrets" in volume) or (
        name == "prepare"
    )


def test_each_service_is_started_by_its_name() -> None:
    """All services except the analyzer, which has another image, are one image."""
    started = {name: SERVICES[name]["command"] for name in WEIR if SERVICES[name]["image"] == dotenv()["WEIR_IMAGE"]}
    assert started == {name: [name] for name in WEIR if name != "analyzer"}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_exists(name: str) -> None:
    """One that is misspelt would be ignored."""
    model = SETTINGS[name]
    variables = {variable(model, field, info) for field, info in model.model_fields.items()}
    assert set(SERVICES[name]["environment"]) <= variables


@pytest.mark.parametrize("name", SETTINGS)
def test_every_value_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the container will be started, but for the folder of tokens, which stands for one here."""
    for key, value in SERVICES[name]["environment"].items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.setenv("WEIR_TOKENS", '{"a-token-of-some-length": {"name": "nobody", "role": "read"}}')
    SETTINGS[name]()


def test_volumes_and_networks_are_declared_and_used() -> None:
    """Both ways."""
    mounts = [v for s in SERVICES.values() for v in s.get("volumes", [])]
    assert {m.split(":")[0] for m in mounts if m[0] not in "./"} == STACK["volumes"].keys()
    assert {n for s in SERVICES.values() for n in s.get("networks", [])} == STACK["networks"].keys()
    assert all((FOLDER / m.split(":")[0]).exists() for m in mounts if m.startswith("./"))


def test_nothing_has_dockers_socket() -> None:
    """A client of it is root on the machine."""
    assert not [name for name, s in SERVICES.items() if any("docker.sock" in v for v in s.get("volumes", []))]


def test_the_loop_may_meet_on_other_brokers() -> None:
    """All services of Weir go there, and the job that makes their topics; the sample stays on the Kafka of this file."""
    services = compose(WEIR_KAFKA_BOOTSTRAP_SERVERS="theirs:9092")["services"]
    servers = {
        name: s["environment"]["WEIR_KAFKA_BOOTSTRAP_SERVERS"] for name, s in services.items() if name in SETTINGS
    }
    samples = dict.fromkeys(["sample-topics", "streams-topics"], "kafka:9092")
    assert servers == {**dict.fromkeys([*WEIR, "topics"], "theirs:9092"), **samples}
    assert "--also" not in services["topics"]["command"]
    assert "theirs" not in str([s for name, s in services.items() if name not in servers])


def test_images_say_what_they_are() -> None:
    """The version of this tree, and the revision given to the build. The image of four services is built for one of them."""
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert dotenv()["WEIR_VERSION"] == version
    services = compose(WEIR_REVISION="4f2c9d1")["services"]
    built = {name: s["build"]["args"] for name, s in services.items() if "build" in s}
    assert built == {
        name: {"VERSION": version, "REVISION": "4f2c9d1"}
        for name in ("analyzer", "knowledge", "load", "sample-job", "streams-supervisor")
    }


def test_policies_are_remembered_where_down_forgets_them() -> None:
    """In a dedicated volume, which the first job gives to the others' user."""
    for name in ("policy", "streams-policy"):
        assert "policies:/var/lib/weir/policies" in SERVICES[name]["volumes"]
        assert "user" not in SERVICES[name]
    assert "policies:/data/policies" in SERVICES["prepare"]["volumes"]


def test_redis_is_reached_by_knowledge_alone() -> None:
    """It has no password: its network is its lock."""
    assert {name for name, s in SERVICES.items() if "memory" in s.get("networks", [])} == {"redis", "knowledge"}
    assert STACK["networks"]["memory"] == {"internal": True}


def test_the_first_policy_is_one() -> None:
    """It names its job where it is, and acts."""
    policy = parse_policy(yaml.safe_load((FOLDER / "jobs" / "policy.yaml").read_text()))
    assert policy.spec.mode == "act"
    where = policy.subject.flink
    assert where.url.host in SERVICES
    assert policy.application == f"demo/{where.job}"


def test_the_streams_application_is_what_its_policy_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Topics, endpoint, bounds and options agree between the policy, the supervisor and the load."""
    policy = parse_policy(yaml.safe_load((FOLDER / "jobs" / "streams.yaml").read_text()))
    given = dict(each.removeprefix("--").split("=") for each in SERVICES["streams-supervisor"]["command"])
    endpoint, streams = policy.spec.target.endpoint, policy.subject.application.kafka_streams
    assert endpoint is not None and streams is not None and policy.spec.mode == "act" and endpoint.restart_instances
    assert streams.application_id == given["application-id"]
    assert str(endpoint.url) == f"http://{given['host']}:8070/scale/{given['application-id']}"
    assert given["host"] == "streams-supervisor" in SERVICES
    assert policy.spec.bounds.max == int(given["max-replicas"])
    load = dict(each.removeprefix("--").split("=") for each in SERVICES["streams-load"]["command"])
    assert (load["topic"], load["payments-topic"]) == (given["orders-topic"], given["payments-topic"])
    made = " ".join(SERVICES["streams-topics"]["command"])
    assert all(f"{given[name]}:" in made for name in ("orders-topic", "payments-topic", "output-topic"))
    with pytest.raises(SystemExit) as ended:
        supervisor(["--help"])
    options = capsys.readouterr().out
    assert ended.value.code == 0 and all(f"--{name}" in options for name in given)
