"""HTTP API of the supervisor: the contract of `spec.target.endpoint`, so that Weir can scale the application."""

from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from runtime.auth import Tokens, requires
from runtime.http import application
from runtime.problems import Problem

from .fleet import Fleet, FleetState
from .scale import StaleVersion

MAX_BODY_BYTES = 10_000
ANSWER_SECONDS = 5.0


class _Document(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        serialize_by_alias=True,
    )


class InstanceDocument(_Document):
    """Process that runs the application."""

    id: str
    metrics_url: str | None


class ScaleDocument(_Document):
    """Instances of the application: requested, ready and running ones."""

    replicas: int
    ready: int
    instances: list[InstanceDocument]
    """Instances whose process has not ended."""
    ended: list[str]
    """Ids of the last instances whose process has ended."""
    version: str


class ScaleRequest(_Document):
    """Number of instances to run, if the version is still the present one."""

    replicas: Annotated[int, Field(ge=0, le=10_000)]
    version: Annotated[str, Field(min_length=1, max_length=200)]


def create_app(fleet: Fleet, name: str, max_replicas: int, tokens: Tokens | None = None) -> FastAPI:
    """Return the API's application, which serves `/scale/NAME`."""
    app = application(
        "Supervisor of the Kafka Streams sample",
        "Runs instances as processes of this machine.",
        tokens,
        body_bytes=MAX_BODY_BYTES,
        answer_seconds=ANSWER_SECONDS,
    )

    @app.get(f"/scale/{name}", dependencies=[Depends(requires("read"))])
    def read() -> ScaleDocument:
        """Return the requested, ready and running instances."""
        return _document(fleet.state())

    @app.put(f"/scale/{name}", dependencies=[Depends(requires("write"))])
    def scale(request: ScaleRequest) -> ScaleDocument:
        """Request a number of instances, unless the version is another one by now. Responds at once."""
        if request.replicas > max_replicas:
            detail = f"replicas: {request.replicas} are requested, this supervisor runs at most {max_replicas}"
            raise Problem(422, detail, errors=[("replicas", detail)])
        try:
            return _document(fleet.scale(request.replicas, request.version))
        except StaleVersion as error:
            raise Problem(409, str(error)) from None

    return app


def _document(state: FleetState) -> ScaleDocument:
    return ScaleDocument(
        replicas=state.scale.replicas,
        ready=state.ready,
        instances=[InstanceDocument(id=each.id, metrics_url=each.metrics_url) for each in state.instances],
        ended=list(state.ended),
        version=state.scale.version,
    )
