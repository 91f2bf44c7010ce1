"""Docker through its SDK: the containers of compose services, found by the labels that compose gives them.

A client of Docker is root on its machine. So only containers with the service's labels are changed, and Docker's
responses are validated.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Annotated

from docker import APIClient
from docker.errors import APIError, DockerException, NotFound
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from requests.exceptions import RequestException
from weir_contracts import InvalidDocument

from .docker_copy import NUMBER, ONE_OFF, PROJECT, SERVICE, Inspected, Uncopyable, copy_of
from .docker_scaling import Container, DockerAway, DockerRefused, NameTaken

MAX_GRACE_SECONDS = 60
DEFAULT_GRACE_SECONDS = 10
"""Docker's default grace period."""
_LEAVING = frozenset({"removing", "dead"})


class _Line(BaseModel):
    """One line of `GET /containers/json`."""

    Id: Annotated[str, Field(min_length=12)]
    Names: Annotated[list[str], Field(min_length=1)]
    State: str
    Labels: dict[str, str] = Field(default_factory=dict)


_LINES = TypeAdapter(list[_Line])


class DockerDaemon:
    """One daemon. Connects at the first call; every call has a timeout. Thread-safe."""

    def __init__(self, url: str, timeout_seconds: int) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._client: APIClient | None = None
        self._lock = Lock()

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def containers(self, project: str, service: str) -> list[Container]:
        labels = [f"{PROJECT}={project}", f"{SERVICE}={service}", f"{ONE_OFF}=False"]
        with _translated("GET /containers/json"):
            lines = _LINES.validate_python(self._api().containers(all=True, filters={"label": labels}))
        # Other fields of the response are ignored.
        found = [_container(line) for line in lines if _belongs(line.Labels, project, service)]
        return [container for container in found if container is not None and container.state not in _LEAVING]

    def copy(self, original: Container, number: int) -> Container:
        with _translated(f"a copy of {original.name}"), _there(original):
            inspected = self._inspected(original)
        with _translated(f"a copy of {original.name}"):
            copy = copy_of(inspected, number, self._image(inspected))
        with _translated(f"POST /containers/create ({copy.name})", creating=True):
            made = self._api().create_container_from_config(copy.body, copy.name)  # type: ignore[no-untyped-call]
            container = Container(str(made["Id"]), copy.name, number, "created")
        try:
            for network, end in copy.networks.items():
                with _translated(f"POST /networks/{network}/connect ({copy.name})"):
                    self._api().connect_container_to_network(
                        container.id, network, aliases=end.get("Aliases"), links=end.get("Links")
                    )
        except (DockerRefused, DockerAway):
            with suppress(DockerRefused, DockerAway):
                self.remove(container)
            raise
        return container

    def start(self, container: Container) -> None:
        with _translated(f"POST /containers/{container.name}/start", final=True), _there(container):
            self._api().start(container.id)

    def stop(self, container: Container) -> None:
        with _translated(f"POST /containers/{container.name}/stop"), suppress(NotFound):
            grace = self._inspected(container).Config.StopTimeout
            grace = DEFAULT_GRACE_SECONDS if grace is None else grace
            self._api().stop(container.id, timeout=max(0, min(grace, MAX_GRACE_SECONDS)))

    def remove(self, container: Container) -> None:
        with _translated(f"DELETE /containers/{container.name}"), suppress(NotFound):
            try:
                self._api().remove_container(container.id, v=True)  # its anonymous volumes go with it
            except APIError as error:
                if "already in progress" not in str(error.explanation):
                    raise

    def _inspected(self, container: Container) -> Inspected:
        found = Inspected.model_validate(self._api().inspect_container(container.id))
        if (
            NUMBER not in found.Config.Labels
            or PROJECT not in found.Config.Labels
            or SERVICE not in found.Config.Labels
        ):
            raise DockerRefused(f"{container.name} is not compose's")
        return found

    def _image(self, inspected: Inspected) -> str:
        """Return the image name that compose shows if it is still the sibling's image, else the image id."""
        with suppress(NotFound):
            tagged = self._api().inspect_image(inspected.Config.Image)  # type: ignore[no-untyped-call]
            if tagged.get("Id") == inspected.Image:
                return inspected.Config.Image
        return inspected.Image

    def _api(self) -> APIClient:
        with self._lock:
            if self._client is None:
                self._client = APIClient(base_url=self._url, version="auto", timeout=self._timeout_seconds)
            return self._client


def _belongs(labels: dict[str, str], project: str, service: str) -> bool:
    return (labels.get(PROJECT), labels.get(SERVICE), labels.get(ONE_OFF)) == (project, service, "False")


def _container(line: _Line) -> Container | None:
    """Return the container, or None without a number, which compose did not create."""
    number = line.Labels.get(NUMBER, "")
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:9]) < 10**8):
        return None
    return Container(line.Id, line.Names[0].removeprefix("/"), int(number), line.State)


@contextmanager
def _there(container: Container) -> Iterator[None]:
    """The container was removed meanwhile: the containers must be listed again."""
    try:
        yield
    except NotFound:
        raise DockerAway(f"{container.name} is not there any more") from None


@contextmanager
def _translated(call: str, *, creating: bool = False, final: bool = False) -> Iterator[None]:
    """Translate Docker's errors to the driver's. With `final` a 5xx response is permanent, too: Docker reports an
    occupied port, or a process that cannot be started, that way."""
    try:
        yield
    except APIError as error:
        reason = f"{call}: {error.status_code} {str(error.explanation or error)[:500].strip()}"
        if creating and error.status_code == 409:
            raise NameTaken(reason) from None
        if error.is_client_error() or creating or final:
            raise DockerRefused(reason) from None
        raise DockerAway(reason) from None
    except Uncopyable as error:
        raise DockerRefused(f"{call} is impossible: {error}") from None
    except ValidationError as error:
        raise DockerAway(f"{call}: {InvalidDocument.of(error, 'the answer')}") from None
    except (DockerException, RequestException) as error:
        raise DockerAway(f"{call}: {str(error)[:500] or type(error).__name__}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DockerAway(f"{call}: no usable answer ({type(error).__name__}: {str(error)[:300]})") from None
