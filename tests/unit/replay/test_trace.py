"""Traces: what load is asked for at which time, and what is said about a file that cannot be one."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_replay.trace import (
    BUNDLED,
    RECORDING_SPEEDUP,
    InvalidTrace,
    LoadTrace,
    Recording,
    Shape,
    Sine,
    Spike,
    Step,
    default_speedup,
    load,
    named,
)
from workloads.loadgen.load import Load, LoadChange

SHAPES: list[Shape] = [Step(), Sine(), Spike(), Recording((0.0, 10.0, 15.0), (4.0, 8.0, 0.0))]


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "load.csv"
    path.write_text(text)
    return path


def test_the_step_triples_at_second_forty() -> None:
    """With a peak of 2,400 records/s the load is 800 and from second 40 on 2,400."""
    trace = LoadTrace(Step(), peak_rate=2400)
    assert [trace.rate_at(t) for t in (0, 39.99, 40, 1e6)] == [800, 800, 2400, 2400]


def test_a_step_can_be_written_down() -> None:
    """Seconds and levels as the command line has them; the highest level is the peak rate."""
    trace = LoadTrace(Step.parse("0:2,10:8,20:1"), peak_rate=800)
    assert [trace.rate_at(t) for t in (0, 10, 19, 20)] == [200, 800, 800, 100]


@pytest.mark.parametrize("text", ["", "5:1", "0:1,0:2", "0:1,x", "0:1,3:nan", "0:-1,4:2", "0:0"])
def test_a_step_that_is_none_is_refused(text: str) -> None:
    """It must begin at second 0, go forward in time, and have a level to scale by."""
    with pytest.raises(InvalidTrace, match="levels"):
        Step.parse(text)


def test_sine_and_spike_begin_low_and_reach_their_peak() -> None:
    """Half a period up; the spike is up between its rise and its fall, and again in the next period."""
    sine, spike = LoadTrace(Sine(), 1000), LoadTrace(Spike(), 1000)
    assert sine.rate_at(0) == pytest.approx(200)
    assert sine.rate_at(120) == pytest.approx(1000)
    assert [spike.rate_at(t) for t in (0, 40, 45, 60, 75, 80, 120)] == [250, 250, 1000, 1000, 1000, 250, 250]
    assert spike.rate_at(42.5) == pytest.approx(625)
    assert spike.rate_at(240 + 60) == 1000


def test_a_recording_is_interpolated_and_begins_again() -> None:
    """Between samples a straight line; after the last one more interval that leads back to the first."""
    trace = LoadTrace(Recording((0.0, 10.0, 20.0), (0.0, 10.0, 20.0)), peak_rate=200)
    assert [trace.rate_at(t) for t in (0, 5, 10, 20, 25, 30, 35)] == [0, 50, 100, 200, 100, 0, 50]


def test_speed_and_start_move_through_the_trace() -> None:
    """At ten times the speed, begun at second 10, the load after one second is that of second 20."""
    trace = LoadTrace(Recording((0.0, 10.0, 20.0), (0.0, 10.0, 20.0)), 20, speedup=10, start_seconds=10)
    assert [trace.rate_at(t) for t in (0, 1)] == [10, 20]


@pytest.mark.parametrize(
    ("shape", "seconds"),
    [
        (Step(), math.inf),
        (Step(((0.0, 1.0), (40.0, 3.0), (55.0, 1.0))), 15.0),
        (Sine(), 120.0),
        (Spike(), 40.0),
        (Recording((0.0, 60.0, 120.0), (1.0, 2.0, 1.0)), 240.0),
    ],
)
def test_how_fast_a_load_turns(shape: Shape, seconds: float) -> None:
    """The shortest duration of a peak; a step that stays cannot be missed."""
    assert LoadTrace(shape, 100.0, speedup=2.0).turn_seconds == seconds / 2


@given(
    shape=st.sampled_from(SHAPES),
    peak=st.floats(1, 1e5),
    speedup=st.floats(0.01, 1e4),
    at=st.floats(0, 1e6),
)
def test_a_rate_lies_between_nothing_and_the_peak(shape: Shape, peak: float, speedup: float, at: float) -> None:
    """Whatever shape, scale, speed and time."""
    rate = LoadTrace(shape, peak, speedup).rate_at(at)
    assert 0 <= rate <= peak * (1 + 1e-9)


@given(steps=st.lists(st.tuples(st.floats(0.5, 100), st.floats(0, 1000)), min_size=2, max_size=20))
def test_a_recording_goes_through_its_samples(steps: list[tuple[float, float]]) -> None:
    """At each sample's time the value is the sample's."""
    offsets = [0.0]
    for step, _ in steps[1:]:
        offsets.append(offsets[-1] + step)
    values = [value for _, value in steps]
    recording = Recording(tuple(offsets), tuple(values))
    for at, value in zip(offsets, values, strict=True):
        assert recording.value_at(at) == pytest.approx(value)


@pytest.mark.parametrize("name", ["peak_rate", "speedup"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_makes_no_sense_is_refused_by_name(name: str, value: float) -> None:
    """The parameter is named."""
    with pytest.raises(InvalidTrace, match=name):
        LoadTrace(Step(), **{"peak_rate": 100.0, name: value})
    with pytest.raises(InvalidTrace, match="start_seconds"):
        LoadTrace(Step(), 100.0, start_seconds=-1)


@pytest.mark.parametrize("stem", ["nyc_taxi", "twitter_volume_amzn", "worldcup98_minutes"])
def test_the_bundled_recordings_load(stem: str) -> None:
    """Each has its licence next to it and lasts for weeks."""
    shape = named(stem)
    assert isinstance(shape, Recording)
    assert shape.period_seconds > 14 * 86_400
    assert stem in (BUNDLED / "README.md").read_text()
    assert default_speedup(shape) == RECORDING_SPEEDUP


def test_shapes_run_at_their_own_speed() -> None:
    """They are made for minutes."""
    assert [default_speedup(named(name)) for name in ("step", "sine", "spike")] == [1, 1, 1]


def test_the_error_for_an_unknown_trace_lists_the_traces() -> None:
    """The sentence lists shapes and bundled recordings."""
    with pytest.raises(InvalidTrace, match=r"'stap' is none of step, sine, spike, nyc_taxi"):
        named("stap")
    with pytest.raises(InvalidTrace, match="cannot be read: No such file"):
        named("nowhere.csv")


def test_times_may_be_seconds_or_dates(tmp_path: Path) -> None:
    """Blank lines and a byte-order mark do no harm."""
    seconds = load(_file(tmp_path, "\ufefftimestamp,value\n0,1\n\n60,2\n"))
    dates = load(_file(tmp_path, "timestamp,value\n2024-03-31 01:30:00,1\n2024-03-31 02:30:00,2\n"))
    assert (seconds.offsets_seconds, seconds.values) == ((0.0, 60.0), (1.0, 2.0))
    assert dates.offsets_seconds == (0.0, 3600.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: the header must be timestamp,value"),
        ("time,rate\n0,1\n", "line 1: the header must be timestamp,value"),
        ("timestamp,value\n", "has 0 samples"),
        ("timestamp,value\n0,1\n", "has 1 samples"),
        ("timestamp,value\n0,1\nyesterday,2\n", "line 3, field timestamp: 'yesterday' is neither a time"),
        ("timestamp,value\n0,1\n0,2\n", "line 3, field timestamp: '0' is not after the line before"),
        ("timestamp,value\n0,1\ninf,2\n", "line 3, field timestamp: 'inf' is not finite"),
        ("timestamp,value\n0,1\n1,many\n", "line 3, field value: 'many' is not a number"),
        ("timestamp,value\n0,1\n1,-2\n", "line 3, field value: '-2' must be finite and not negative"),
        ("timestamp,value\n0,1\n1,nan\n", "line 3, field value: 'nan' must be finite"),
        ("timestamp,value\n0,1\n1,2,3\n", "line 3: 3 fields"),
        ("timestamp,value\n0,0\n1,0\n", "field value: all are 0"),
        ("timestamp,value,colour\n0,1,2\n", "line 1: the header must be timestamp,value and may go on with key_skew"),
        ("timestamp,value,key_skew\n0,1,0\n1,1,9\n", "line 3, field key_skew: '9' must lie between 0 and 5"),
        ("timestamp,value,record_bytes\n0,1,8\n1,1,64\n", "line 2, field record_bytes: '8' must lie between 32 and"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    """File, line and field, so that it can be put right."""
    with pytest.raises(InvalidTrace) as caught:
        load(_file(tmp_path, text))
    assert "load.csv" in str(caught.value)
    assert expected in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8."""
    path = tmp_path / "load.csv"
    path.write_bytes(b"timestamp,value\n\xff\xfe,1\n")
    with pytest.raises(InvalidTrace, match="not UTF-8"):
        load(path)


def test_key_skew_and_record_size_may_follow_the_trace(tmp_path: Path) -> None:
    """They hold from one sample to the next; what is set over HTTP comes before them, and null goes back."""
    text = "timestamp,value,key_skew,record_bytes\n0,1,0,160\n60,2,1.5,400\n120,1,0.5,100\n"
    trace = LoadTrace(load(_file(tmp_path, text)), 1000.0)
    loads = [Load(trace, trace_seconds=at) for at in (0.0, 59.0, 60.0, 130.0)]
    assert [(one.skew_now(), one.bytes_now()) for one in loads] == [(0, 160), (0, 160), (1.5, 400), (0.5, 100)]
    changed = loads[2].changed(LoadChange(key_skew=0.2))
    assert (changed.skew_now(), changed.bytes_now()) == (0.2, 400)
    assert changed.changed(LoadChange(key_skew=None)).skew_now() == 1.5
    assert (Load(LoadTrace(Step(), 10.0)).skew_now(), Load(LoadTrace(Step(), 10.0)).bytes_now()) == (0.0, 160)
