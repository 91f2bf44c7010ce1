"""Settings: typed, documented with unit and reason, checked at start, printed once without secrets."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from inspect import cleandoc
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from pydantic import AliasChoices, Field, PrivateAttr, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from weir_contracts.document import sentence_of

from .access import Tokens, read_tokens
from .bus import Bus, SignedBus, read_signing_keys
from .clock import Clock
from .files import FollowedFiles, FollowedSet, read_text
from .http import ListenerTls
from .kafka_bus import KafkaBus
from .kafka_client import read_security
from .loop import masked, without_credentials
from .origins import is_loopback
from .reach import USUAL_TARGETS, Allowed, Reach, read_pairs, words

S = TypeVar("S", bound="ServiceSettings")
A = TypeVar("A")
T = TypeVar("T")

EXIT_BAD_SETTINGS = 2


def shared(name: str, **arguments: Any) -> Any:
    """Return a field that every service reads from the variable `WEIR_<NAME>`."""
    return Field(validation_alias=AliasChoices(f"WEIR_{name.upper()}", name), **arguments)


def http_port(default: int) -> Any:
    """Return the field of a service's port: one default each, so that all services run on one machine."""
    return shared("http_port", default=default, ge=0, le=65535, description="port to listen on")


class ServiceSettings(BaseSettings):
    """Settings of every service. A service's own settings have its name as a prefix: `WEIR_MONITOR_…`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True, use_attribute_docstrings=True
    )

    kafka_bootstrap_servers: str = shared(
        "kafka_bootstrap_servers", default="127.0.0.1:9092", pattern=r"^[^\s,/@]+:\d+(,[^\s,/@]+:\d+)*$"
    )
    """brokers of the loop as host:port, comma-separated"""
    kafka_credentials_file: Path | None = shared("kafka_credentials_file", default=None)
    """JSON file with TLS and SASL settings for the brokers of the loop"""
    signing_keys_file: Path | None = shared("signing_keys_file", default=None)
    """file with secret keys of 32 characters or more, one a line, the same for all services but the analyzer: policies, plans and
    outcomes are signed with the first, and refused unless signed with one of them; without it nothing is signed"""
    partitions: int = shared("partitions", default=4, ge=1, le=512)
    """partitions of every topic of the loop, and maximum number of replicas of a service that share its work"""
    replication_factor: int | None = shared("replication_factor", default=None, ge=1, le=100)
    """replicas of each topic of Weir; default: the brokers' default.replication.factor. Existing topics keep theirs: readiness and
    `weir doctor` name those with fewer"""
    min_insync_replicas: int | None = shared("min_insync_replicas", default=None, ge=1, le=100)
    """replicas that must have a record before it counts as written, of each topic of Weir; default: the brokers'
    min.insync.replicas. At most WEIR_REPLICATION_FACTOR, which it needs; one less lets a broker be away"""
    http_host: str = shared("http_host", default="127.0.0.1", min_length=1)
    """address to listen on; any but loopback requires tokens"""
    http_port: int = http_port(8080)
    allowed_hosts: str = shared("allowed_hosts", default="", pattern=r"^([^\s,:/@]+(,[^\s,:/@]+)*)?$")
    """further names of the listener, comma-separated without ports, next to loopback's and its own address; any other
    Host is refused"""
    tokens_file: Path | None = shared("tokens_file", default=None)
    """JSON file {"token": {"name": …, "role": …, "namespaces": […]}}; the role is metrics, read, write, planner-admin or
    executor, or a list of these; without it only loopback may listen"""
    tokens: SecretStr | None = shared("tokens", default=None)
    """accepted tokens as JSON text in the form of that file; added to those of the file"""
    http_certificate_file: Path | None = shared("http_certificate_file", default=None)
    """PEM file of the listener's certificate and its chain; with it the listener requires TLS. It is read again when it
    changes"""
    http_key_file: Path | None = shared("http_key_file", default=None)
    """PEM file of the certificate's key, without a password"""
    log_level: str = shared("log_level", default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """minimum level that is logged"""
    knowledge_url: str = shared("knowledge_url", default="http://127.0.0.1:8080", pattern=r"^https?://[^\s@]+$")
    """address of the knowledge service"""
    knowledge_token: SecretStr | None = shared("knowledge_token", default=None)
    """bearer token for the knowledge service"""
    secrets_folder: Path | None = shared("secrets_folder", default=None)
    """folder of files that are each named as a setting and hold its value, as Docker and Kubernetes mount secrets; the
    environment takes precedence"""

    _followed: list[FollowedFiles[Any]] = PrivateAttr(default_factory=list)

    @property
    def followed_files(self) -> Sequence[FollowedFiles[Any]]:
        """The files that the service reads again when they change."""
        return self._followed

    def follow(self, files: FollowedFiles[T]) -> FollowedFiles[T]:
        """Add to these files."""
        self._followed.append(files)
        return files

    def secret_file(self, name: str) -> Path | None:
        """Return the file of the folder of secrets that gives a setting its value; None if the environment does."""
        setting = variable(type(self), name, type(self).model_fields[name])
        if self.secrets_folder is None or os.environ.get(setting):
            return None
        return next((path for path in self.secrets_folder.glob("*") if path.name.upper() == setting), None)

    @field_validator("kafka_bootstrap_servers")
    @classmethod
    def _ports_exist(cls, value: str) -> str:
        return checked_ports(value)

    @model_validator(mode="after")
    def _writable_topics(self) -> Self:
        if self.min_insync_replicas is not None and self.min_insync_replicas > (self.replication_factor or 0):
            # Topics with fewer replicas would take no record.
            raise ValueError(
                f"WEIR_MIN_INSYNC_REPLICAS: {self.min_insync_replicas} needs WEIR_REPLICATION_FACTOR={self.min_insync_replicas} or more"
            )
        return self

    @model_validator(mode="after")
    def _safe_listener(self) -> Self:
        if not is_loopback(self.http_host) and self.tokens_file is None and self.tokens is None:
            raise ValueError(
                f"WEIR_HTTP_HOST: {self.http_host} can be reached from outside, so WEIR_TOKENS_FILE must name a file of tokens"
            )
        return self

    @model_validator(mode="after")
    def _usable_certificate(self) -> Self:
        if (self.http_certificate_file is None) != (self.http_key_file is None):
            raise ValueError("WEIR_HTTP_CERTIFICATE_FILE and WEIR_HTTP_KEY_FILE belong together")
        self.listener_tls()
        return self

    @model_validator(mode="after")
    def _readable_kafka_credentials(self) -> Self:
        _ = self.kafka_security
        read_signing_keys(self.signing_keys_file)
        return self

    @property
    def kafka_security(self) -> Mapping[str, str]:
        """TLS and SASL settings of librdkafka for the brokers of the loop; `ValueError` that names the setting if they
        cannot be read."""
        return read_security(self.kafka_credentials_file)

    def bus(self, clock: Clock | None = None) -> Bus:
        """Return the bus of the loop, with signatures where there are keys."""
        bus, keys = (
            KafkaBus(self.kafka_bootstrap_servers, self.kafka_security, clock=clock),
            read_signing_keys(self.signing_keys_file),
        )
        return SignedBus(bus, keys) if keys else bus

    def listener_tls(self) -> ListenerTls | None:
        """Return the TLS context of the listener; None without a certificate. `ValueError` that names the setting if the
        files cannot be used."""
        if self.http_certificate_file is None or self.http_key_file is None:
            return None
        try:
            return ListenerTls(self.http_certificate_file, self.http_key_file)
        except OSError as error:
            raise ValueError(
                f"WEIR_HTTP_CERTIFICATE_FILE, WEIR_HTTP_KEY_FILE: cannot be used together: {error.strerror or error}"
            ) from None

    def callers(self) -> Tokens:
        """Return the tokens of the callers; `ValueError` that names the setting if they cannot be read."""
        return read_tokens(self.tokens_file, self.tokens.get_secret_value() if self.tokens else None)

    def hosts(self) -> list[str]:
        """Return the listener's names and addresses in addition to those of loopback."""
        return [self.http_host, *filter(None, self.allowed_hosts.split(","))]

    def describe(self) -> dict[str, Any]:
        """Return all values for the line at start. Secrets are masked by their type, `SecretStr`, in mappings as well."""
        values = self.model_dump().items()
        return {name: masked("", str(value) if isinstance(value, Path) else value) for name, value in values}


class TargetSettings(ServiceSettings):
    """Settings of a service that reads the addresses in policies or connects to them."""

    target_hosts: str = shared("target_hosts", default="*")
    """hosts that targets and brokers of policies may have, comma-separated: a name, *.example.org for all below it, *
    for any; {namespace} in it is the policy's own, as in *.{namespace}.svc"""
    target_networks: str = shared("target_networks", default=USUAL_TARGETS)
    """networks that addresses of targets and brokers may lie in, comma-separated: 10.0.0.0/8, public, private or loopback; link-local
    addresses and metadata services of clouds only if a network such as 169.254.0.0/16 lists them"""

    target_namespaces: str = shared("target_namespaces", default="")
    """pairs FROM:TO of namespaces, comma-separated: policies of FROM may name Kubernetes workloads of TO; * is any.
    Without them a policy names workloads of its own namespace only"""
    target_namespaces_file: Path | None = shared("target_namespaces_file", default=None)
    """file with further such pairs, separated by commas or line breaks; it is read again when it changes"""
    target_groups: str = shared("target_groups", default="*")
    """consumer groups that policies may name, comma-separated, with * for any characters; {namespace} in it is the
    policy's own, as in {namespace}-*"""
    target_resubmit_hosts: str = shared("target_resubmit_hosts", default="")
    """hosts of Flink clusters on which policies may stop a job and run a jar (target.flink.resubmit), in the form of
    WEIR_TARGET_HOSTS; empty: none"""

    @model_validator(mode="after")
    def _readable_lists(self) -> Self:
        self.reach()
        return self

    def reach(self) -> Reach:
        """Return what policies may name, by their namespace."""
        reach = Reach.of(self.targets(), self.target_groups, self.target_namespaces, self.target_resubmit_hosts)
        further = self._further_pairs
        return reach if further is None else replace(reach, pairs=FollowedSet(further, frozenset(reach.pairs)))

    @cached_property
    def _further_pairs(self) -> FollowedFiles[frozenset[tuple[str, str]]] | None:
        setting, path = "WEIR_TARGET_NAMESPACES_FILE", self.target_namespaces_file
        if path is None:
            return None
        return self.follow(
            FollowedFiles(setting, lambda: read_pairs(read_text(path, setting), setting), lambda _: [path])
        )

    def targets(self) -> Allowed:
        """Return the allowed addresses of targets and brokers."""
        try:
            return Allowed.of("http,https", self.target_hosts, self.target_networks, prefix="WEIR_TARGET")
        except ValueError as error:
            raise ValueError(f"WEIR_TARGET_NETWORKS: {error}") from None


class KubernetesSettings(TargetSettings):
    """Settings of a service that uses the Kubernetes API for the workloads of policies."""

    kubernetes_url: str = shared(
        "kubernetes_url",
        default="",
        pattern=r"^(https?://[^\s@]+|unix:/[^\s@]+)?$",
        description="address of the Kubernetes API server, or unix:PATH of a socket of this machine, as kubectl proxy --unix-socket has "
        "it; empty: that of the cluster in which the service runs",
    )
    kubernetes_ca_file: Path | None = shared(
        "kubernetes_ca_file",
        default=None,
        description="certificate of the API server's authority, with WEIR_KUBERNETES_URL",
    )
    kubernetes_token_file: Path | None = shared(
        "kubernetes_token_file",
        default=None,
        description="file with the bearer token for the API server, with WEIR_KUBERNETES_URL; it is read again when it changes",
    )
    kubernetes_namespaces: str = Field(
        default="",
        pattern=r"^([a-z0-9][-a-z0-9]*(,[a-z0-9][-a-z0-9]*)*)?$",
        description="namespaces whose workloads policies may name, comma-separated; empty: none, and no connection to Kubernetes",
    )

    kubernetes_namespaces_file: Path | None = Field(
        default=None,
        description="file with further such namespaces, separated by commas or line breaks; it is read again when it changes",
    )

    @model_validator(mode="after")
    def _readable_namespaces(self) -> Self:
        _ = self.namespaces
        return self

    @property
    def uses_kubernetes(self) -> bool:
        """Whether a setting lists namespaces, or may do so later."""
        return bool(self.kubernetes_namespaces) or self.kubernetes_namespaces_file is not None

    def kubernetes_access(self, of: Callable[[str, Path | None, Path | None], A]) -> A:
        """Return the access that `of` makes of the API server's address and files; end the program for invalid ones."""
        try:
            return of(self.kubernetes_url, self.kubernetes_ca_file, self.kubernetes_token_file)
        except ValueError as error:
            refuse(error)

    @cached_property
    def namespaces(self) -> Set[str]:
        """The listed namespaces; those of the file as it is now."""
        listed, path = frozenset(filter(None, self.kubernetes_namespaces.split(","))), self.kubernetes_namespaces_file
        if path is None:
            return listed
        field = type(self).model_fields["kubernetes_namespaces_file"]
        setting = variable(type(self), "kubernetes_namespaces_file", field)
        files = FollowedFiles(setting, lambda: _read_namespaces(path, setting), lambda _: [path])
        return FollowedSet(self.follow(files), listed)


def _read_namespaces(path: Path, setting: str) -> frozenset[str]:
    names = words(read_text(path, setting))
    if wrong := [name for name in names if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)]:
        raise ValueError(f"{setting}: {path}: {wrong[0][:100]!r} is no name of a namespace")
    return frozenset(names)


def checked_ports(addresses: str) -> str:
    """Return comma-separated `host:port` unchanged; `ValueError` for an invalid port."""
    for address in addresses.split(","):
        if not 1 <= int(address.rpartition(":")[2]) <= 65535:
            raise ValueError(f"the port of {address} must be between 1 and 65535")
    return addresses


def variable(model: type[BaseSettings], name: str, info: FieldInfo) -> str:
    if isinstance(info.validation_alias, AliasChoices):
        return str(info.validation_alias.choices[0])
    return f"{model.model_config.get('env_prefix', '')}{name}".upper()


def problems(model: type[BaseSettings], error: ValidationError) -> list[str]:
    """Return a line for each invalid setting: its variable, the problem, and its value unless it is a secret."""
    lines = []
    fields = {name: (variable(model, name, info), info) for name, info in model.model_fields.items()}
    for each in error.errors(include_url=False):
        message = sentence_of(each)
        if not each["loc"]:
            lines.append(message)
            continue
        loc = str(each["loc"][0])
        named, info = next((field for name, field in fields.items() if loc in (name, field[0])), (loc, None))
        is_secret = info is not None and "Secret" in str(info.annotation)
        given = "" if is_secret or each["type"] == "missing" else f" (is {without_credentials(repr(each['input']))})"
        lines.append(f"{named}: {message}{given}")
    return lines


def _undecoded(model: type[BaseSettings], error: SettingsError) -> str:
    """Return the line for a variable whose value must be JSON, without the value: it may be a secret."""
    named = re.search(r'field "(\w+)"', str(error))
    name = named[1] if named else ""
    if name not in model.model_fields:
        return str(error)
    return f"{variable(model, name, model.model_fields[name])}: must be JSON ({error.__cause__ or error})"


def load(model: type[S], arguments: Sequence[str] = ()) -> S:
    """Read a service's settings from the environment; an invalid one ends the program with code 2 and a line that names
    it.

    `--help` and `--print-settings` print and end with code 0.
    """
    if "--help" in arguments or "-h" in arguments:
        _end(_help(model), 0)
    if unknown := [a for a in arguments if a != "--print-settings"]:
        refuse(f"unknown option {unknown[0]}; --help lists the options")
    for name in _misspelt(model):
        sys.stderr.write(f"settings: {name} is unknown and ignored; --help lists the settings\n")
    try:
        settings = model(_secrets_dir=_secrets_folder())
        settings.callers()
    except ValidationError as error:
        _end("\n".join(f"settings: {line}" for line in problems(model, error)), EXIT_BAD_SETTINGS)
    except SettingsError as error:
        refuse(_undecoded(model, error))
    except ValueError as error:
        refuse(error)
    if arguments:
        _end(json.dumps(_in_full(settings), indent=2, ensure_ascii=False), 0)
    return settings


def refuse(problem: object) -> NoReturn:
    """End the program with code 2 and a line that names the invalid setting."""
    _end(f"settings: {problem}", EXIT_BAD_SETTINGS)


def _secrets_folder() -> Path | None:
    """Return the folder of secrets; `ValueError` for an unreadable file."""
    named = os.environ.get("WEIR_SECRETS_FOLDER")
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise ValueError(f"WEIR_SECRETS_FOLDER: {folder} is no folder")
    for path in folder.iterdir():
        if path.is_file() and not os.access(path, os.R_OK):
            raise ValueError(f"WEIR_SECRETS_FOLDER: cannot read {path}")
    return folder


def _misspelt(model: type[BaseSettings]) -> list[str]:
    """Return variables with the service's own prefix that are no settings."""
    prefix = str(model.model_config.get("env_prefix", "")).upper()
    names = {variable(model, name, info) for name, info in model.model_fields.items()}
    return sorted(
        name for name in os.environ if prefix and name.upper().startswith(prefix) and name.upper() not in names
    )


def table(model: type[BaseSettings], *, own_only: bool = False) -> str:
    """Return the settings as a markdown table, for a service's README."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, info in model.model_fields.items():
        if not (own_only and name in ServiceSettings.model_fields):
            rows.append(f"| `{variable(model, name, info)}` | {_default(info, '`{}`')} | {_meaning(info)} |")
    return "\n".join(rows)


def _default(info: FieldInfo, form: str) -> str:
    """Return a setting's default in this form; empty without one."""
    if info.is_required():
        return "required"
    default = info.get_default(call_default_factory=True)
    if isinstance(default, SecretStr) and "://" in default.get_secret_value():
        default = default.get_secret_value()  # an address, which stands in the source; a password is masked
    text = "" if default is None else without_credentials(str(default))
    return form.format(text) if text else ""


def _meaning(info: FieldInfo) -> str:
    return " ".join((info.description or "").split())


def _in_full(settings: ServiceSettings) -> dict[str, dict[str, Any]]:
    """Return value, default and meaning of each setting by its variable; secrets are masked."""
    model, values = type(settings), settings.describe()
    return {
        variable(model, name, info): {
            "value": values[name],
            "default": _default(info, "{}") or None,
            "meaning": _meaning(info),
        }
        for name, info in model.model_fields.items()
    }


def _help(model: type[BaseSettings]) -> str:
    lines = [cleandoc(model.__doc__ or ""), "", "Settings, from the environment:"]
    for name, info in model.model_fields.items():
        default = _default(info, "default {}") or "not set"
        lines.append(f"  {variable(model, name, info)}  {_meaning(info)} ({default})")
    return "\n".join([*lines, "", "Options: --help, --print-settings"])


def _end(text: str, code: int) -> NoReturn:
    stream = sys.stdout if code == 0 else sys.stderr
    stream.write(text + "\n")
    raise SystemExit(code)
