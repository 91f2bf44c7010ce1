"""A real Kafka broker (KRaft, one node) on the loopback interface."""

import os
import re
import secrets
import subprocess
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from .jars import class_path, java
from .kubernetes_access import Authority, write_keystore
from .process import ManagedProcess, Server, TestbedError, accepts_connections, claim_port, free_port

_CLUSTER_ID = "d2VpcndlaXJ3ZWlyd2Vpcg"  # any 16 bytes in base64; one-node clusters never meet

FORMAT_TIMEOUT_SECONDS = 60.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised_port},SASL://127.0.0.1:{sasl_port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=\
  org.apache.kafka.common.security.plain.PlainLoginModule required {logins};
log.dirs={data}
num.partitions=1
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=1000
log.retention.check.interval.ms=10000
"""

_TLS_PROPERTIES = """\
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl_port},TLS://127.0.0.1:{tls_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised_port},SASL://127.0.0.1:{sasl_port},TLS://127.0.0.1:{tls_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT
listener.name.tls.sasl.enabled.mechanisms=PLAIN
listener.name.tls.plain.sasl.jaas.config=\
  org.apache.kafka.common.security.plain.PlainLoginModule required {logins};
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={keystore}
"""
"""Replace or follow the properties of a broker without TLS: of a property that occurs twice the last counts."""

_AUTHORIZER_PROPERTIES = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""

SASL_USER = "reader"


def _spark_jars() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise TestbedError("pyspark is not installed: run `make setup`")
    return Path(found.origin).parent / "jars"


class KafkaBroker(Server):
    """One broker; its data outlives `kill()` and `restart()`, on the same port. A second listener, `sasl_servers`, demands
    SASL/PLAIN of the user `SASL_USER` with the password `sasl_password`.

    `advertised_port`: the port for clients, if the caller runs a proxy in front of the broker. With `tls` a third
    listener, `tls_servers`, demands the same over TLS; clients trust `tls_authority` (needs openssl). With `authorizer` the
    user `SASL_USER` has no right until it is given one, and its log names what it refuses; clients of the first listener have
    all rights. `users`: those with the password. `properties`: further lines of the broker's configuration.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        advertised_port: int | None = None,
        heap_megabytes: int = 512,
        tls: bool = False,
        authorizer: bool = False,
        users: Sequence[str] = (SASL_USER,),
        properties: str = "",
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._advertised_port = advertised_port or self.port
        self._controller_port = free_port()
        self._sasl_port = free_port()
        self._tls_port = free_port() if tls else None
        self._authorizer = authorizer
        self._users = users
        self._properties = properties
        self._authority = Authority(folder / "authority")
        self.sasl_password = secrets.token_hex(16)
        self._heap_megabytes = heap_megabytes
        self.process = self._process()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """Address of the listener with SASL."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def tls_servers(self) -> str:
        """Address of the listener with TLS and SASL."""
        return f"127.0.0.1:{self._tls_port}"

    @property
    def tls_authority(self) -> Path:
        """Certificate of the authority that has signed the broker's."""
        return self._authority.certificate

    def start(self, timeout_seconds: float = 90.0) -> Self:
        """Format the data folder if it is new, start, and wait until metadata is answered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "kafka.properties"
        data = self.folder / "kafka-data"
        values = {
            "port": self.port,
            "advertised_port": self._advertised_port,
            "controller_port": self._controller_port,
            "sasl_port": self._sasl_port,
            "logins": " ".join(f'user_{user}="{self.sasl_password}"' for user in self._users),
            "data": data.resolve(),
        }
        text = _PROPERTIES.format(**values)
        if self._tls_port is not None:
            self._authority.create()
            keystore = self.folder / "broker.pem"
            write_keystore(self._authority.issue("kafka", names=["IP:127.0.0.1", "DNS:localhost"]), keystore)
            text += _TLS_PROPERTIES.format(**values, tls_port=self._tls_port, keystore=keystore.resolve())
        if self._authorizer:
            text += _AUTHORIZER_PROPERTIES
        text += self._properties
        config.write_text(text)
        if not (data / "meta.properties").exists():
            self._format(config)
        claim_port("kafka", self.port)
        claim_port("kafka", self._controller_port)
        claim_port("kafka", self._sasl_port)
        if self._tls_port is not None:
            claim_port("kafka", self._tls_port)
        self.process.start_ready(self._answers, timeout_seconds=timeout_seconds)
        return self

    def allow(self, rights: Iterable[tuple[str, str, str]], *, prefixed: bool = False, user: str = SASL_USER) -> None:
        """Grant rights to a user with a password. A right is the kind of resource (`topic`, `group`, `transactional-id`),
        its name (with `prefixed` the beginning of the name), and the operation as Kafka's documentation writes it
        (`DescribeConfigs`)."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        bindings = [
            AclBinding(
                ResourceType[kind.upper().replace("-", "_")],
                name,
                pattern,
                f"User:{user}",
                "*",
                AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()],
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in rights
        ]
        admin = self._admin  # has to outlive the requests
        for each in admin.create_acls(bindings).values():
            each.result(timeout=60)

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; `configs` with `_` for `.` in their names. `TestbedError` if the broker refuses."""
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in configs.items()})
        admin = self._admin  # has to outlive the request
        try:
            admin.create_topics([topic], request_timeout=15)[name].result(timeout=20)
        except KafkaException as error:
            raise TestbedError(f"kafka: cannot create topic {name}: {error.args[0].str()}") from None

    def _process(self) -> ManagedProcess:
        classes = class_path("kafka")
        if self._authorizer:
            # Maven's jars of SLF4J do not fit each other, so that a broker logs nothing; with Spark's interface it does.
            classes = os.pathsep.join([*map(str, _spark_jars().glob("slf4j-api-2*.jar")), classes])
        command = [
            *java(),
            f"-Xmx{self._heap_megabytes}m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *(["-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=info"] if self._authorizer else []),
            "-cp",
            classes,
            "kafka.Kafka",
            str(self.folder / "kafka.properties"),
        ]
        return ManagedProcess("kafka", command, self.folder)

    def _format(self, config: Path) -> None:
        command = [*java(), "-cp", class_path("kafka"), "kafka.tools.StorageTool", "format"]
        try:
            done = subprocess.run(
                [*command, "-t", _CLUSTER_ID, "-c", str(config)],
                capture_output=True,
                timeout=FORMAT_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TestbedError(f"kafka: its folder is not formatted within {FORMAT_TIMEOUT_SECONDS:g} s") from None
        if done.returncode:
            raise TestbedError(f"kafka: cannot format its folder: {done.stderr.decode(errors='replace')[-300:]}")

    def _answers(self) -> bool:
        if not accepts_connections(self.port):
            return False
        try:
            return bool(self._admin.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False

    @cached_property
    def _admin(self) -> AdminClient:
        # Silent: a broker that is not up yet is what is being waited for, not an event to report.
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
