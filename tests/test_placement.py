from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppler import Cluster, Graph, Placement, Problem
from doppler.errors import PlacementError


def problem(**extra: Any) -> Problem:
    graph = Graph.from_arrays(
        [0], [1], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0], name="g", names=["a", "b", "c"], **extra
    )
    return Problem(graph, Cluster.uniform(2))


def test_arrays_are_copied_and_frozen() -> None:
    devices = np.array([0, 1, 0])
    placement = Placement(devices, [2, 1, 0], {"method": "hand"})
    devices[0] = 5
    assert placement.devices.tolist() == [0, 1, 0]
    assert placement.devices.dtype == np.int32
    assert placement.priority is not None
    assert placement.priority.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        placement.devices[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        placement.priority[0] = 1


@pytest.mark.parametrize(
    ("devices", "priority", "message"),
    [
        ([0, -1], None, "placement: op 1 has device -1"),
        ([0, 0.5], None, "placement: devices must be a list of whole numbers"),
        ([[0], [1]], None, "placement: devices must be a list of whole numbers"),
        ([[0], [1, 2]], None, "placement: devices must be a list of whole numbers"),
        (["a"], None, "placement: devices must be a list of whole numbers"),
        ([True, False], None, "placement: devices must be a list of whole numbers"),
        (None, None, "placement: devices must be a list of whole numbers"),
        ({0: 1}, None, "placement: devices must be a list of whole numbers"),
        ([0, 2**31], None, "placement: devices holds a number that is too large"),
        ([0, 2**62], None, "placement: devices holds a number that is too large"),
        ([0, 2**64], None, "placement: devices must be a list of whole numbers"),
        ([], None, "placement: the list of devices is empty"),
        ([0, 1], [1], "placement: 1 priorities for 2 devices"),
        ([0, 1], [0.0, 1.0], "placement: priority must be a list of whole numbers"),
        ([0, 1], [0, -(2**31) - 1], "placement: priority holds a number that is too large"),
    ],
)
def test_rules(devices: Any, priority: Any, message: str) -> None:
    with pytest.raises(PlacementError) as caught:
        Placement(devices, priority)
    assert str(caught.value) == message


def test_a_placement_that_suits() -> None:
    Placement([0, 1, 1]).validate(problem())
    Placement([0, 1, 1], [5, 5, -5]).validate(problem(pinned=[0, -1, -1], colocation=[-1, 3, 3]))


@pytest.mark.parametrize(
    ("devices", "extra", "message"),
    [
        ([0, 1], {}, "placement: 2 ops, but graph 'g' has 3"),
        (
            [0, 2, 1],
            {},
            "placement: op 1 (b) is on device 2, but the last device is 1",
        ),
        (
            [0, 1, 1],
            {"pinned": [1, -1, -1]},
            "placement: op 0 (a) is on device 0, but pinned to device 1",
        ),
        (
            [0, 1, 1],
            {"colocation": [4, -1, 4]},
            "placement: colocation group 4 is split over devices 0 and 1 (op 2, c)",
        ),
    ],
)
def test_a_placement_that_does_not_suit(
    devices: list[int], extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        Placement(devices).validate(problem(**extra))
    assert str(caught.value) == message


@pytest.mark.parametrize("priority", [None, [3, -1, 2**31 - 1]])
def test_round_trip(priority: list[int] | None, tmp_path: Path) -> None:
    placement = Placement([1, 0, 3], priority, {"method": "hand", "makespan_s": 0.1})
    again = Placement.load(placement.save(tmp_path / "new" / "p.json"))
    assert again.devices.tolist() == [1, 0, 3]
    assert again.priority is None if priority is None else again.priority.tolist() == priority
    assert again.info == {"method": "hand", "makespan_s": 0.1}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["p.json"]


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    data = json.loads(Placement([1, 0]).save(tmp_path / "p.json").read_text())
    assert data == {
        "format": "doppler-placement",
        "version": 1,
        "devices": [1, 0],
        "priority": None,
        "info": {},
    }


GOOD = {"format": "doppler-placement", "version": 1, "devices": [0, 1], "priority": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty, so not a placement file"),
        (json.dumps(GOOD)[:-5], "so not a placement file; it may be cut short"),
        ("[" * 100_000, "the JSON is nested too deep to be a placement"),
        ("[]", "not a placement file (no format: doppler-placement)"),
        ("3", "not a placement file (no format: doppler-placement)"),
        ('{"nodes": []}', "not a placement file (no format: doppler-placement)"),
        (json.dumps({**GOOD, "version": 2}), "placement version 2, this Doppler reads 1"),
        (json.dumps({**GOOD, "version": "x" * 500}), "xxx"),
        (
            json.dumps({**GOOD, "devices": None}),
            "devices is None, must be a list",
        ),
        (json.dumps({**GOOD, "devices": []}), "placement: the list of devices is empty"),
        (json.dumps({**GOOD, "devices": [0, -3]}), "placement: op 1 has device -3"),
        (json.dumps({**GOOD, "devices": [1e400]}), "devices[0] is inf, must be a whole number"),
        (json.dumps({**GOOD, "priority": [1]}), "placement: 1 priorities for 2 devices"),
        (json.dumps({**GOOD, "priority": "high"}), "priority is 'high', must be a list"),
        (
            '{"format": "doppler-placement", "version": 1' + "1" * 5000 + "}",
            "an integer with too many digits",
        ),
    ],
)
def test_files_that_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(PlacementError) as caught:
        Placement.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 130


def test_a_byte_order_mark_is_no_damage(tmp_path) -> None:
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert Placement.load(path).devices.tolist() == GOOD["devices"]


def test_an_array_of_objects_that_are_numbers_is_numbers() -> None:
    assert Placement(np.array([0, 1], object)).devices.tolist() == [0, 1]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"none: no such file; give the path of a placement"):
        Placement.load(tmp_path / "none")
    with pytest.raises(PlacementError, match="is a directory; give the path of a placement file"):
        Placement.load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(PlacementError, match="is not UTF-8 text, so it cannot be a placement file"):
        Placement.load(tmp_path / "binary")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {"format": st.just("doppler-placement"), "version": st.just(1)},
        optional={
            "devices": st.lists(st.integers(-1, 3)) | JSON,
            "priority": st.lists(st.integers(-1, 3)) | JSON,
            "info": JSON,
        },
    )
)
def test_nothing_but_a_placement_error_leaves_the_loader(
    tmp_path: Path, data: dict[str, Any]
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    try:
        placement = Placement.load(path)
    except PlacementError:
        return
    assert placement.devices.tolist() == data["devices"]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_refused_or_still_a_placement(
    tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray(json.dumps(GOOD).encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=3))
    path = tmp_path / "p.json"
    path.write_bytes(raw)
    try:
        placement = Placement.load(path)
    except PlacementError:
        return
    assert placement.devices.min() >= 0
