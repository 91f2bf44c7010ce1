"""Access to the API server of a test cluster: certificates, tokens and kubeconfig files, and the audit log of who has asked
for what."""

import json
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from .process import TestbedError

REQUEST_SECONDS = 30.0


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority of one cluster, made with openssl. Its files are kept from one start to the next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"

    def create(self) -> None:
        """Make the authority's own certificate and the key pair of service account tokens, if they do not exist."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.certificate.exists():
            return
        _key(self._key)
        _key(self.service_account_key)
        _openssl("ec", "-in", self.service_account_key, "-pubout", "-out", self.service_account_public_key)
        subject = ("-subj", "/CN=weir-testbed", "-days", "365")
        _openssl("req", "-x509", "-new", "-key", self._key, "-sha256", *subject, "-out", self.certificate)

    @property
    def service_account_key(self) -> Path:
        return self.folder / "service-accounts.key"

    @property
    def service_account_public_key(self) -> Path:
        return self.folder / "service-accounts.pub"

    def issue(self, name: str, *, names: Sequence[str] = (), groups: Sequence[str] = ()) -> Certificate:
        """Return a certificate for server and client use with common name `name`, made on first use.

        `names`: alternative names as openssl writes them (`IP:127.0.0.1`, `DNS:localhost`). `groups`: organizations,
        which Kubernetes takes for the user's groups.
        """
        file = name.replace(":", "-")
        issued = Certificate(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        if issued.certificate.exists():
            return issued
        _key(issued.key)
        request = self.folder / f"{file}.csr"
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={name}"
        _openssl("req", "-new", "-key", issued.key, "-subj", subject, "-out", request)
        extensions = self.folder / f"{file}.ext"
        lines = ["basicConstraints=CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
        if names:
            lines.append(f"subjectAltName={','.join(names)}")
        extensions.write_text("\n".join(lines) + "\n")
        signer = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "365", "-sha256")
        _openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", issued.certificate)
        return issued


def write_keystore(issued: Certificate, path: Path) -> None:
    """Write a certificate and its key into one file, as Kafka reads PEM: the key in PKCS 8."""
    key = path.with_suffix(".pkcs8")
    _openssl("pkcs8", "-topk8", "-nocrypt", "-in", issued.key, "-out", key)
    path.write_text(key.read_text() + issued.certificate.read_text())
    path.chmod(0o600)


def write_java_stores(issued: Certificate, authority: Path, folder: Path, password: str) -> tuple[Path, Path]:
    """Write a keystore with a certificate and its key, and a truststore with an authority, as Java reads PKCS 12."""
    keys, trusted = folder / "keystore.p12", folder / "truststore.p12"
    pair = ("-in", issued.certificate, "-inkey", issued.key)
    _openssl("pkcs12", "-export", *pair, "-name", "own", "-passout", f"pass:{password}", "-out", keys)
    # Java trusts an entry of PKCS 12 only with an attribute that openssl does not write.
    trusted.unlink(missing_ok=True)
    store = ("-keystore", trusted, "-storetype", "PKCS12", "-storepass", password)
    _run("keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", authority, *store)
    return keys, trusted


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    path.chmod(0o600)


def _openssl(*arguments: object) -> None:
    _run("openssl", *arguments)


def _run(program: str, *arguments: object) -> None:
    try:
        done = subprocess.run(
            [program, *(str(argument) for argument in arguments)], capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"{program} {arguments[0]}: {error}; install {program}") from None
    if done.returncode:
        reason = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise TestbedError(f"{program} {arguments[0]}: {reason}")


@dataclass(frozen=True)
class Access:
    """How one user reaches the API server: address, the authority's certificate, a token in a file, a kubeconfig."""

    user: str
    url: str
    ca_file: Path
    token_file: Path
    kubeconfig: Path

    @property
    def token(self) -> str:
        return self.token_file.read_text()

    def client(self, timeout_seconds: float = REQUEST_SECONDS, *, connections: int = 0) -> httpx.Client:
        """Return an HTTP client with this user's token, to be closed by the caller. By default it keeps no connection: the
        API server may be restarted between requests."""
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token}"},
            verify=ssl.create_default_context(cafile=str(self.ca_file)),
            timeout=timeout_seconds,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=connections),
        )


def create_access(folder: Path, user: str, token: str, url: str, ca_file: Path) -> Access:
    """Write a user's token and kubeconfig into `folder`, readable by their owner alone.

    A later token replaces the file at once: who reads it at that moment gets the old or the new one.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = user.replace(":", "-")
    access = Access(user, url, ca_file, folder / f"{file}.token", folder / f"{file}.kubeconfig")
    new = access.token_file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(token)
    new.replace(access.token_file)
    # The token is named by its file, so that no kubeconfig holds a secret.
    credentials = {"tokenFile": str(access.token_file.resolve())}
    access.kubeconfig.write_text(yaml.safe_dump(kubeconfig(url, ca_file, credentials)))
    return access


def kubeconfig(url: str, ca_file: Path, credentials: Mapping[str, str]) -> dict[str, Any]:
    """Return a kubeconfig of one cluster and one user; `credentials` as in its field `user`."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "weir", "cluster": {"server": url, "certificate-authority": str(ca_file.resolve())}}],
        "users": [{"name": "weir", "user": dict(credentials)}],
        "contexts": [{"name": "weir", "context": {"cluster": "weir", "user": "weir"}}],
        "current-context": "weir",
    }


@dataclass(frozen=True)
class AuditEvent:
    """One request as the API server has logged it; a watch is logged when it starts.

    `user` is empty without authentication, `resource` has its subresource after a slash, `code` is the HTTP status.
    """

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "AuditEvent":
        """Return the event of one line of the log, decoded."""
        target = raw.get("objectRef", {})
        resource = "/".join(part for part in (target.get("resource"), target.get("subresource")) if part)
        return cls(
            user=raw["user"].get("username", ""),
            verb=raw["verb"],
            group=target.get("apiGroup", ""),
            resource=resource,
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=raw.get("responseStatus", {}).get("code", 0),
        )


def audit_policy(left_out: Sequence[str]) -> dict[str, Any]:
    """Return a policy that logs each request once, but for those of the users `left_out` and of Kubernetes'
    controllers."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": [*left_out, "system:apiserver"]},
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system", "system:nodes"]},
            {"level": "Metadata"},
        ],
    }


def read_events(log: Path) -> Iterator[AuditEvent]:
    """Yield the requests in a log, in order; a line that is still being written is left for the next time."""
    logged = set()  # a watch has a line when it starts and one when it ends
    with log.open() as lines:
        for line in lines:
            raw = json.loads(line) if line.endswith("\n") else {}
            if raw and raw["auditID"] not in logged:
                logged.add(raw["auditID"])
                yield AuditEvent.of(raw)
