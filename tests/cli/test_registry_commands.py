"""``doppler registry``: versions in and out, and every way to refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppler.registry import Registry


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def two(cli, policy) -> None:
    """Two versions; the first is champion."""
    cli("registry", "add", "--policy", policy, "--metric", "ratio=1.02", "--json").json()
    cli("registry", "add", "--policy", policy, "--parent", "v1", "--json").json()
    cli("registry", "promote", "v1", "--json").json()


def test_a_version_with_all_its_files(cli, policy, layer, placement, small_memory) -> None:
    done = cli(
        *("registry", "add", "--policy", policy, "--placement", placement),
        *("--cluster", small_memory, "--metric", "ratio=1.02", "--metric", "pairs=20", "--json"),
    ).json()
    assert (done["id"], done["status"], done["parent"]) == ("v1", "challenger", None)
    assert sorted(done["files"]) == ["cluster.yaml", "placement.json", "policy.safetensors"]
    assert done["metrics"] == {"ratio": 1.02, "pairs": 20.0}
    assert done["origin"].keys() == {"git", "params", "data"}
    assert done["decisions"] == []
    kept = Path(done["directory"], "placement.json")
    assert kept.read_bytes() == placement.read_bytes()


def test_a_placement_of_any_name_is_kept_as_a_placement(cli, policy, placement) -> None:
    other = placement.rename(placement.with_name("layer.json"))
    done = cli("registry", "add", "--policy", policy, "--placement", other, "--json").json()
    assert "placement-layer.json" in done["files"]
    twice = cli("registry", "add", "--policy", policy, "--placement", other, "--placement", other)
    assert "there are two placements of the name placement-layer.json" in twice.refusal()


@pytest.mark.usefixtures("two")
def test_promote_and_rollback_and_the_list(cli, policy) -> None:
    promoted = cli("registry", "promote", "v2", "--reason", "a try", "--json").json()
    assert (promoted["id"], promoted["status"]) == ("v2", "champion")
    assert promoted["decisions"][-1]["evidence"] == {"by": "hand", "reason": "a try"}
    back = cli("registry", "rollback", "--reason", "slower", "--json").json()
    assert (back["id"], back["status"]) == ("v1", "champion")
    listed = cli("registry", "list", "--json").json()
    assert listed["champion"] == "v1"
    assert [(v["id"], v["status"]) for v in listed["versions"]] == [
        ("v1", "champion"),
        ("v2", "rejected"),
    ]
    assert [event["event"] for event in listed["history"]] == ["promote", "promote", "rollback"]
    text = cli("registry", "list").out
    for word in ("id", "status", "created", "parent", "metrics", "git", "champion", "ratio 1.02"):
        assert word in text
    assert Path("models/registry/versions/v1/policy.safetensors").read_bytes() == (
        policy.read_bytes()
    )


@pytest.mark.usefixtures("two")
def test_people_are_told_what_happened(cli) -> None:
    assert "v2: is the champion now" in cli("registry", "promote", "v2").out
    shown = cli("registry", "show", "champion").out
    for word in ("v2", "status", "champion", "policy.safetensors", "SHA-256", "promote", "v1"):
        assert word in shown
    assert "v1: is the champion again" in cli("registry", "rollback").out
    assert "every file of the registry is as it was added" in cli("registry", "verify").out
    assert "every file of v2 is as it was added" in cli("registry", "verify", "v2").out


def test_an_empty_registry(cli) -> None:
    assert "no versions; 'doppler registry add' adds one" in cli("registry", "list").out
    empty = cli("registry", "list", "--json").json()
    assert (empty["champion"], empty["versions"], empty["history"]) == (None, [], [])
    assert "has no versions" in cli("registry", "show", "v1").refusal()
    assert "has no champion" in cli("registry", "show", "champion").refusal()
    for decision in (["rollback"], ["promote", "v1"]):
        assert "has no versions; 'dvc pull' fetches" in cli("registry", *decision).refusal()
    assert "models/registry: no such folder" in cli("registry", "verify").refusal()
    assert not Path("models").exists()


@pytest.mark.usefixtures("two")
def test_damage_is_told_and_ends_with_2(cli, layer) -> None:
    path = Path("models/registry/versions/v1/policy.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    done = cli("registry", "verify", "--json")
    assert done.code == 2
    assert '"ok": false' in done.out
    assert str(path) in done.out
    assert done.err == (
        "error: models/registry: 1 problem; restore the files with 'dvc pull --force'\n"
    )
    assert str(path) in cli("registry", "verify").out
    assert cli("registry", "verify", "v2").code == 0
    refusal = cli("place", layer, "-c", "uniform:2", "--policy", "champion").refusal()
    assert f"{path}: is cut short" in refusal
    assert "dvc pull" in refusal


@pytest.mark.slow
@pytest.mark.usefixtures("two")
def test_the_policy_of_the_champion_places(cli, layer, policy) -> None:
    arguments = ("place", layer, "-c", "uniform:2", "--budget", "0", "--json", "--policy")
    champion, file = cli(*arguments, "champion").json(), cli(*arguments, policy).json()
    assert champion["makespan_s"] == file["makespan_s"]
    compared = cli(
        *("compare", layer, "-c", "uniform:2", "--budget", "0", "--methods", "doppler"),
        *("--policy", "champion", "--json"),
    ).json()
    assert compared["winner"] == "doppler"


def test_without_a_champion_nothing_is_placed(cli, layer) -> None:
    done = cli("place", layer, "-c", "uniform:2", "--policy", "champion", "--budget", "0")
    assert "models/registry: has no champion" in done.refusal()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "ratio"], "--metric ratio: is not of the form ratio=1.02"),
        (["--metric", "ratio=good"], "is not of the form ratio=1.02"),
        (["--metric", "=1"], "is not of the form ratio=1.02"),
        (["--metric", "a=1", "--metric", "a=2"], "a is given twice"),
        (["--metric", "a=nan"], "metric 'a' is nan, must be a finite number"),
        (["--parent", "v1"], "has no versions"),
        (["--parent", "champion"], "has no champion"),
        (["--placement", "none.json"], "none.json: no such file"),
        (["--cluster", "none.yaml"], "none.yaml: no such file"),
        (["--policy", "none.safetensors"], "none.safetensors: no such policy file"),
    ],
)
def test_wrong_parts_of_a_version_are_refused(cli, policy, arguments, message) -> None:
    assert message in cli("registry", "add", "--policy", policy, *arguments).refusal()
    assert Registry().versions() == ()


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["promote", "v9"], "unknown version 'v9': did you mean 'v2'? known are v1, v2"),
        (["promote", "v1"], "v1 is the champion already"),
        (["promote"], "Missing argument"),
        (["show", "../v1"], "unknown version"),
        (["rollback"], "v1 is the first champion, so there is none to roll back to"),
        (["list", "--directory", "models/registry/history.json"], "cannot be read"),
        (["forget"], "No such command 'forget'; see 'doppler registry --help'"),
        ([], "Missing command; see 'doppler registry --help'"),
    ],
)
def test_wrong_use_is_one_line(cli, arguments, message) -> None:
    assert message in cli("registry", *arguments).refusal()


def test_help_has_examples(cli) -> None:
    for command in ("list", "show", "add", "promote", "rollback", "verify"):
        done = cli("registry", command, "--help")
        assert f"doppler registry {command}" in done.out.split("Examples:")[1]
        assert "--directory" in done.out
        assert "--json" in done.out
