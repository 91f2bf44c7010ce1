"""The what-if endpoint: an answer from the latest analysis, or one sentence with the reason for its absence."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.unit.knowledge.builders import policy
from tests.unit.knowledge.direct_log import changes_of, show, show_messages
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.planner.build import APP, NOON, SOURCE, WORK, analysis, operator
from tests.unit.predictor.test_what_if_ahead import WAVE
from weir_contracts import WhatIf
from weir_knowledge.__main__ import api
from weir_knowledge.applications_api import applications_router
from weir_runtime.clock import FakeClock

PATH = f"/v1/applications/{APP}/what-if"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def http(store: MemoryStore) -> AsyncIterator[httpx.AsyncClient]:
    app = api()
    app.include_router(applications_router(changes_of(store, FakeClock(NOON + timedelta(seconds=5)))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://knowledge") as client:
        yield client


async def remembered(store: MemoryStore, **changes: Any) -> None:
    """The store knows an analysis of 800/s on two subtasks of 500/s."""
    await show_messages(store, analysis(**changes))


async def test_an_answer(http: httpx.AsyncClient, store: MemoryStore) -> None:
    """Twice the load on four subtasks, over five minutes."""
    await remembered(store)
    answer = await http.get(f"{PATH}?parallelism=work=4&load=x2&horizon=5m")
    assert answer.status_code == 200, answer.text
    found = WhatIf.model_validate_json(answer.text)
    assert (found.parallelism, found.throughput, found.keeps_up) == ({SOURCE: 1, WORK: 4}, 1600.0, True)
    assert found.prediction is not None
    assert found.prediction.horizon_seconds == 300
    assert found.sentence.startswith("At 1,600 records/s (x2) with work 2 → 4 it keeps up")


async def test_without_a_question_it_predicts_the_present(http: httpx.AsyncClient, store: MemoryStore) -> None:
    """The present parallelism and load for ten minutes: how far it is from breaking."""
    await remembered(store)
    found = WhatIf.model_validate_json((await http.get(PATH)).text)
    assert (found.load_factor, found.breaks_at_load) == (1.0, 1.25)


@pytest.mark.parametrize(
    ("query", "field", "reason"),
    [
        ({"parallelism": "worck=4"}, "query.parallelism", "there is no operator 'worck'; there are: orders, work"),
        ({"parallelism": "work"}, "query.parallelism", "is no operator=number"),
        ({"parallelism": "work=0"}, "query.parallelism", "must lie between 1 and 32768"),
        ({"load": "2"}, "query.load", "write x2"),
        ({"horizon": "600"}, "query.horizon", "duration with a unit"),
        ({"horizon": "9s"}, "query.horizon", "between 10s and 1d"),
        ({"horizon": "2d"}, "query.horizon", "between 10s and 1d"),
        ({"at": "soon"}, "query.at", "write 2h, or now"),
        ({"at": "in 30m", "load": "1200/s"}, "query.load", "later than now the load is the forecast"),
        ({"load": "x" + "1" * 100}, "query.load", "at most 40 characters"),
    ],
)
async def test_what_makes_no_sense(
    http: httpx.AsyncClient, store: MemoryStore, query: dict[str, str], field: str, reason: str
) -> None:
    """422 as a problem document that names the field."""
    await remembered(store)
    answer = await http.get(f"{PATH}?{urlencode(query)}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["field"] == field
    assert reason in answer.json()["detail"]


async def test_the_forecast_and_how_far_it_reaches(http: httpx.AsyncClient, store: MemoryStore) -> None:
    """Middle and upper edge with where each figure comes from; 422 beyond the forecast, 409 without one."""
    answer = await http.get(f"{PATH}?load=forecast")
    assert answer.status_code == 404
    await remembered(store)
    answer = await http.get(f"{PATH}?load=forecast")
    assert (answer.status_code, "no source has a forecast yet" in answer.json()["detail"]) == (409, True)
    await remembered(store, forecasts=[WAVE], at=NOON + timedelta(seconds=1))
    found = WhatIf.model_validate_json((await http.get(f"{PATH}?{urlencode({'at': 'in 30m'})}")).text)
    assert (found.after_seconds, found.arrival_rate) == (1800.0, 1400.0)
    assert [load.arrivals for load in found.loads] == ["expected", "upper-edge"]
    assert found.explained
    answer = await http.get(f"{PATH}?{urlencode({'at': 'in 2h'})}")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "query.at")
    assert answer.json()["detail"] == "the forecast reaches 1h ahead; 2h and the horizon of 10m are 2h10m"


async def test_an_unknown_application(http: httpx.AsyncClient) -> None:
    """Neither a policy nor a message: 404."""
    answer = await http.get(PATH)
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        f"{APP} is unknown: it has neither a policy nor messages",
    )


async def test_too_early(http: httpx.AsyncClient, store: MemoryStore) -> None:
    """A policy and no analysis, then an analysis without a capacity: 409, with what is missing."""
    await show(store, policy())
    answer = await http.get(PATH)
    assert answer.status_code == 409
    assert answer.json()["detail"] == f"{APP} has no prediction yet: it was not analysed yet"
    await remembered(store, operators=[])
    answer = await http.get(PATH)
    assert answer.status_code == 409
    assert "no operator's capacity is known yet" in answer.json()["detail"]


async def test_an_unknown_capacity_is_an_answer(http: httpx.AsyncClient, store: MemoryStore) -> None:
    """200, with nulls and the operator that is unknown and why."""
    await remembered(store, operators=[operator(SOURCE, 1, None, 800.0), operator(WORK, 2, 1000.0, 800.0)])
    found = (await http.get(f"{PATH}?load=x2&parallelism=work=6")).json()
    assert (found["throughput"], found["prediction"], found["keeps_up"]) == (None, None, None)
    assert found["unknown"] == [{"operator": SOURCE, "what": "capacity", "because": "no reading yet"}]
