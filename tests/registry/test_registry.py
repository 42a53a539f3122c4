"""Versions, decisions and rollback; damage, bad names, writers at once and writers killed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.errors import RegistryError
from doppler.registry import POLICY, Registry


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models" / "registry", timeout=20)


def source(directory: Path, content: bytes) -> Path:
    path = directory / "sources" / hashlib.sha256(content).hexdigest()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def add(registry: Registry, tmp_path: Path):
    def call(content: bytes = b"weights", **more):
        return registry.add({POLICY: source(tmp_path, content)}, **more)

    return call


def content_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_version_keeps_its_files_and_where_it_comes_from(registry, add, tmp_path) -> None:
    first = add(b"one", origin={"git": "abc", "seed": 3}, metrics={"ratio": 1})
    cluster = tmp_path / "any name.yaml"
    cluster.write_text("devices: []\n")
    second = registry.add(
        {POLICY: source(tmp_path, b"two"), "cluster.yaml": cluster}, parent=first.id
    )
    assert (first.id, second.id, second.parent, first.parent) == ("v1", "v2", "v1", None)
    assert first.created.endswith("+00:00")
    assert first.origin == {"git": "abc", "seed": 3}
    assert first.metrics == {"ratio": 1.0}
    assert registry.path("v2", POLICY).read_bytes() == b"two"
    assert registry.path("v2", "cluster.yaml").read_text() == "devices: []\n"
    assert first.files[POLICY].sha256 == hashlib.sha256(b"one").hexdigest()
    assert registry.versions() == (first, second)
    assert registry.version("v1") == first
    assert registry.challengers == (first, second)
    assert registry.champion is None
    assert registry.problems() == []


def test_versions_sort_by_number(registry, add) -> None:
    for _ in range(11):
        add()
    assert [version.id for version in registry.versions()] == [f"v{i}" for i in range(1, 12)]


def test_decisions_make_the_status_and_keep_their_evidence(registry, add) -> None:
    for _ in range(4):
        add()
    registry.promote("v1", {"by": "hand"})
    registry.promote("v2", {"ratio": 0.97})
    registry.reject("v3", {"ratio": 1.0})
    assert registry.champion.id == "v2"
    assert [registry.status(f"v{i}") for i in (1, 2, 3, 4)] == [
        *("retired", "champion", "rejected", "challenger")
    ]
    assert [version.id for version in registry.challengers] == ["v4"]
    events = [(e.kind, e.id, e.previous, dict(e.evidence)) for e in registry.history.events]
    assert events == [
        ("promote", "v1", None, {"by": "hand"}),
        ("promote", "v2", "v1", {"ratio": 0.97}),
        ("reject", "v3", "v2", {"ratio": 1.0}),
    ]
    assert [event.id for event in registry.history.of("v1")] == ["v1", "v2"]
    assert [event.id for event in registry.history.of("v3")] == ["v3"]


def test_rollback_restores_the_earlier_champion_bit_for_bit(registry, add) -> None:
    for content in (b"\x00good" * 1000, b"better", b"bad"):
        registry.promote(add(content).id)
    before = content_of(registry.directory / "versions")
    assert registry.rollback({"reason": "slower"}).id == "v2"
    assert registry.champion.path(POLICY).read_bytes() == b"better"
    assert registry.status("v3") == "rejected"
    assert registry.rollback().id == "v1"
    assert registry.champion.path(POLICY).read_bytes() == b"\x00good" * 1000
    assert content_of(registry.directory / "versions") == before
    with pytest.raises(RegistryError, match="v1 is the first champion, so there is none to roll"):
        registry.rollback()
    # A person may think again, and a rollback then returns to the champion of the time.
    registry.promote("v3")
    assert registry.rollback().id == "v1"


def test_rollback_without_any_champion(registry, add) -> None:
    add()
    with pytest.raises(RegistryError, match="has no champion, so there is none to roll back to"):
        registry.rollback()


@given(st.lists(st.tuples(st.sampled_from(["promote", "rollback", "reject"]), st.integers(1, 4))))
@settings(max_examples=40)
def test_any_decisions_leave_the_champion_that_a_stack_would(tmp_path_factory, steps) -> None:
    directory = tmp_path_factory.mktemp("registry")
    registry = Registry(directory / "registry")
    for i in range(4):
        registry.add({POLICY: source(directory, bytes([i]))})
    stack: list[str] = []
    for kind, number in steps:
        version = f"v{number}"
        top = stack[-1] if stack else None
        refused = len(stack) < 2 if kind == "rollback" else version == top
        if refused:
            with pytest.raises(RegistryError):
                registry.rollback() if kind == "rollback" else getattr(registry, kind)(version)
        elif kind == "rollback":
            stack.pop()
            assert registry.rollback().id == stack[-1]
        else:
            getattr(registry, kind)(version)
            if kind == "promote":
                stack.append(version)
        champion = registry.champion
        assert (champion.id if champion else None) == (stack[-1] if stack else None)
        statuses = [registry.status(each.id) for each in registry.versions()]
        assert statuses.count("champion") == (1 if stack else 0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"is cut short \(6 of 7 bytes\)"),
        (lambda path: path.write_bytes(b"weightz"), "was changed"),
        (lambda path: path.write_bytes(b"weights and more"), "was changed"),
    ],
)
def test_damage_is_found_on_load_and_names_file_and_fix(registry, add, damage, message) -> None:
    registry.promote(add().id)
    other = add(b"other")
    path = registry.directory / "versions" / "v1" / POLICY
    damage(path)
    with pytest.raises(RegistryError, match=rf"v1/policy\.safetensors: {message}.*dvc pull") as e:
        registry.champion.path(POLICY)
    assert "doppler registry verify" in str(e.value)
    (problem,) = registry.problems()
    assert str(path) in problem
    # Neither promotion nor rollback makes a champion of what is damaged.
    registry.promote(other.id)
    with pytest.raises(RegistryError, match=message):
        registry.rollback()
    with pytest.raises(RegistryError, match=message):
        registry.promote("v1")
    assert registry.champion.id == "v2"


@pytest.mark.parametrize(
    ("old", "new"), [('"seed": 3', '"seed": 4'), ('"v1"', '"v2"'), ("{", ""), ('"sha256"', '"x"')]
)
def test_a_changed_manifest_is_found(registry, add, old, new) -> None:
    version = add(origin={"seed": 3})
    manifest = version.directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace(old, new, 1))
    with pytest.raises(
        RegistryError,
        match=r"v1/manifest\.json: (was changed|line 2 .*not valid JSON|is damaged).*restore",
    ):
        registry.version("v1")
    assert str(manifest) in registry.problems()[0]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:-20], "is damaged"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace('"version": 1', '"version": 7'), "has format version 7"),
        (
            lambda text: text.replace("promote", "demote"),
            "event is 'demote', must be 'promote', 'roll",
        ),
        (lambda text: text.replace('"v1"', '"../v1"'), "id is .../v1., must match"),
        (lambda text: text.replace('"v1"', "null"), "is damaged"),
        (lambda text: text.replace('"evidence": {', '"proof": {'), "is damaged"),
        (lambda text: text.replace('"previous": null', '"previous": "v9"'), "does not follow"),
    ],
)
def test_a_damaged_history_is_found(registry, add, spoil, message) -> None:
    registry.promote(add().id)
    path = registry.directory / "history.json"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(RegistryError, match=rf"history\.json: .*{message}"):
        registry.champion  # noqa: B018
    with pytest.raises(RegistryError, match=message):
        add()
    assert message.split()[-1] in registry.problems()[0]


def test_a_version_that_was_decided_on_and_is_gone_is_missed(registry, add) -> None:
    registry.promote(add().id)
    (registry.directory / "versions" / "v1").rename(registry.directory / "elsewhere")
    with pytest.raises(RegistryError, match=r"v1/manifest\.json: is missing; restore it"):
        registry.champion  # noqa: B018
    assert "is missing" in registry.problems()[0]
    # Its number is not given to another.
    assert add().id == "v2"


def test_files_that_do_not_belong_and_parents_that_are_gone_are_reported(registry, add) -> None:
    first = add()
    add(parent="v1")
    (first.directory / "notes.txt").write_text("")
    assert registry.problems() == [
        f"{first.directory / 'notes.txt'}: is not in the manifest; remove it"
    ]
    (first.directory / "notes.txt").unlink()
    (registry.directory / "versions" / "v01").mkdir()
    (problem,) = registry.problems()
    assert problem.endswith("versions/v01: is no version; remove it")
    (registry.directory / "versions" / "v01").rmdir()
    first.directory.rename(registry.directory / "elsewhere")
    (problem,) = registry.problems()
    assert problem.endswith("versions/v1: is missing, the parent of v2")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "manifest.json", "a\0b", "ä"]
)
def test_a_name_that_is_no_plain_name_is_refused(registry, add, tmp_path, name) -> None:
    with pytest.raises(RegistryError, match="cannot be the name of a file"):
        registry.add({name: source(tmp_path, b"")})
    assert not registry.directory.exists()
    add()
    with pytest.raises(RegistryError, match="version v1 has no file"):
        registry.path("v1", name)


@pytest.mark.parametrize("version", ["../v1", "v0", "v01", "1", "", "V1", "v2"])
def test_an_unknown_version_is_refused(registry, add, version) -> None:
    add()
    for call in (registry.version, registry.promote, registry.reject, registry.status):
        with pytest.raises(RegistryError, match=r"unknown version .* known are v1"):
            call(version)
    with pytest.raises(RegistryError, match="unknown version"):
        add(parent=version)
    assert len(registry.versions()) == 1


def test_an_empty_registry_says_how_to_fill_it(registry) -> None:
    assert registry.versions() == ()
    assert registry.champion is None
    assert registry.problems() == []
    with pytest.raises(RegistryError, match="has no versions; 'dvc pull' fetches"):
        registry.version("v1")
    with pytest.raises(RegistryError, match="has no champion; 'doppler registry promote ID'"):
        registry.require_champion()
    assert not registry.directory.parent.exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"metrics": {"ratio": float("nan")}}, "metric 'ratio' is nan"),
        ({"metrics": {"ratio": "good"}}, "metric 'ratio' is 'good'"),
        ({"origin": {"seed": {1, 2}}}, "must be what JSON can express"),
        ({"origin": {"seed": float("inf")}}, "must be what JSON can express"),
    ],
)
def test_what_json_cannot_express_is_refused_and_leaves_nothing(
    registry, add, more, message
) -> None:
    with pytest.raises(RegistryError, match=message):
        add(**more)
    assert registry.versions() == ()
    add()
    with pytest.raises(RegistryError, match="evidence must be what JSON can express"):
        registry.promote("v1", {"ratio": float("nan")})
    assert registry.champion is None
    assert {*os.listdir(registry.directory.parent / ".registry.unfinished")} <= {
        ".gitignore",
        "lock",
    }


def test_sources_that_cannot_be_read_are_refused(registry, tmp_path) -> None:
    with pytest.raises(RegistryError, match=r"gone: cannot be copied .*No such file"):
        registry.add({POLICY: tmp_path / "gone"})
    with pytest.raises(RegistryError, match=r"cannot be copied .*Is a directory"):
        registry.add({POLICY: tmp_path})
    with pytest.raises(RegistryError, match="needs at least one file"):
        registry.add({})
    assert registry.versions() == ()


def test_the_champion_is_not_rejected_nor_promoted_again(registry, add) -> None:
    registry.promote(add().id)
    with pytest.raises(RegistryError, match="v1 is the champion; 'doppler registry rollback'"):
        registry.reject("v1")
    with pytest.raises(RegistryError, match="v1 is the champion already"):
        registry.promote("v1")


def test_a_held_registry_is_read_but_not_written(registry, add, tmp_path) -> None:
    registry.promote(add().id)
    impatient = Registry(registry.directory, timeout=0.1)
    lock = tmp_path / "models" / ".registry.unfinished" / "lock"
    with FileLock(lock):
        assert impatient.champion.path(POLICY).read_bytes() == b"weights"
        with pytest.raises(RegistryError, match=rf"{lock}: another process has held the registry"):
            impatient.rollback()
        with pytest.raises(RegistryError, match="another process has held"):
            impatient.add({POLICY: source(tmp_path, b"x")})
    assert len(registry.versions()) == 1


def test_links_into_a_cache_are_replaced_and_what_they_name_stays(registry, add, tmp_path) -> None:
    registry.promote(add(b"one").id)
    cache = tmp_path / "cache"
    cache.mkdir()
    for i, path in enumerate(sorted(registry.directory.rglob("*.*"))):
        if path.is_file():
            path.rename(cache / str(i))
            (cache / str(i)).chmod(0o444)
            path.symlink_to(cache / str(i))
    before = content_of(cache)
    registry.promote(add(b"two").id)
    registry.rollback()
    assert registry.champion.path(POLICY).read_bytes() == b"one"
    assert content_of(cache) == before
    assert registry.problems() == []


def test_what_is_unfinished_lies_beside_the_registry_and_git_ignores_it(registry, add) -> None:
    registry.promote(add().id)
    assert sorted(os.listdir(registry.directory)) == ["history.json", "versions"]
    beside = registry.directory.parent / ".registry.unfinished"
    assert (beside / ".gitignore").read_text() == "*\n"
    assert {*os.listdir(beside)} <= {".gitignore", "lock"}


def _work(directory: Path, content: bytes, count: int) -> None:
    registry = Registry(directory / "registry", timeout=60)
    for _ in range(count):
        version = registry.add({POLICY: source(directory, content)})
        registry.promote(version.id, {"worker": content.decode()})


def test_two_processes_at_once_lose_nothing(tmp_path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=_work, args=(tmp_path, content, 8)) for content in (b"a", b"b", b"c")
    ]
    for worker in workers:
        worker.start()
    registry = Registry(tmp_path / "registry")
    while any(worker.is_alive() for worker in workers):
        # A reader sees whole versions and a history that holds together at any time.
        assert registry.problems() == []
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    versions = registry.versions()
    assert [version.id for version in versions] == [f"v{i}" for i in range(1, 25)]
    contents = [version.path(POLICY).read_bytes() for version in versions]
    assert sorted(contents) == sorted([b"a", b"b", b"c"] * 8)
    promoted = {event.id: event.evidence["worker"] for event in registry.history.events}
    assert promoted == {v.id: c.decode() for v, c in zip(versions, contents, strict=True)}


def test_threads_of_one_process_wait_for_one_another(registry, add) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = [version.id for version in pool.map(lambda i: add(bytes([i])), range(16))]
    assert sorted(ids) == sorted(f"v{i}" for i in range(1, 17))
    assert registry.problems() == []


def _killed_at(directory: Path, step: int) -> bool:
    """Add and promote in a child that is killed before its ``step``-th touch of the disk."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple) -> None:
            nonlocal left
            touches = event in {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
            if touches and any(str(directory) in str(part) for part in arguments[:2]):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        registry = Registry(directory / "registry")
        registry.promote(registry.add({POLICY: directory / "new"}).id)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_at_any_point_it_is_whole_and_the_next_writer_cleans_up(tmp_path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    registry = Registry(tmp_path / "registry")
    registry.promote(registry.add({POLICY: source(tmp_path, b"old")}).id)
    step, added = 0, 1
    while _killed_at(tmp_path, step):
        champion = registry.champion
        versions = registry.versions()
        assert registry.problems() == []
        assert len(versions) in (added, added + 1)
        expected = {"v1": b"old"}.get(champion.id, b"new")
        assert champion.path(POLICY).read_bytes() == expected
        added = len(versions)
        step += 1
    assert step > 10
    assert registry.champion.path(POLICY).read_bytes() == b"new"
    assert {*os.listdir(tmp_path / ".registry.unfinished")} <= {".gitignore", "lock"}
    assert json.loads((tmp_path / "registry" / "history.json").read_text())["version"] == 1


@pytest.mark.parametrize("linked", [False, True], ids=["folder", "link"])
def test_nothing_is_removed_where_a_registry_did_not_make_the_folder(tmp_path, linked) -> None:
    beside = tmp_path / ".registry.unfinished"
    theirs = tmp_path / "theirs" if linked else beside
    (theirs / "new").mkdir(parents=True)
    (theirs / "new" / "file").write_text("mine")
    if linked:
        (theirs / ".gitignore").write_text("*\n")
        beside.symlink_to(theirs)
    registry = Registry(tmp_path / "registry")
    with pytest.raises(RegistryError, match=r"\.registry\.unfinished: is where .* not made by one"):
        registry.add({POLICY: source(tmp_path, b"one")})
    assert (theirs / "new" / "file").read_text() == "mine"


def test_what_others_keep_beside_a_registry_is_left_alone(tmp_path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.promote(registry.add({POLICY: source(tmp_path, b"one")}).id)
    beside = tmp_path / ".registry.unfinished"
    for folder in (tmp_path / ".registry", beside):
        (folder / "kept").mkdir(parents=True)
        (folder / "kept" / "file").write_text("mine")
        (folder / "file").write_text("mine")
    registry.promote(registry.add({POLICY: source(tmp_path, b"two")}).id)
    for folder in (tmp_path / ".registry", beside):
        assert (folder / "kept" / "file").read_text() == "mine"
        assert (folder / "file").read_text() == "mine"


@pytest.mark.parametrize("root", ["/", "/..", "//"])
def test_the_root_of_the_file_system_is_no_registry(root) -> None:
    with pytest.raises(RegistryError, match="give a folder of its own"):
        Registry(root)
