"""The SDK's checks of a planner before its first request."""

import pytest

from weir_sdk import Reply, Request, application


def stays(request: Request) -> Reply:
    """Nothing more."""
    return request.hold("enough", "no operator needs more")


def test_its_interface_is_described() -> None:
    """An OpenAPI document with request and reply."""
    assert "requestBody" in application(stays).openapi()["paths"]["/plan"]["post"]


@pytest.mark.parametrize("threads", [0, -1])
def test_zero_threads_are_refused(threads: int) -> None:
    """Refused before anything is served."""
    with pytest.raises(ValueError, match="threads"):
        application(stays, threads=threads)
