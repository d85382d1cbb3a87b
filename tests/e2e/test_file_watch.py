"""Are workers read again when the configuration or the file of workers changes?"""

import os

import pytest

from conftest import worker
from programs import wait_for
from test_faults import store
from test_members import config_of, lists, rewrite, state_of, streams


@pytest.fixture
def generated(tmp_path):
    """The workers_file. A program writes a new file and renames it into place."""
    path = tmp_path / "workers.cfg"

    def write(*workers):
        new = path.with_suffix(".new")
        new.write_text("workers = (\n" + ",\n".join("{ " + row + " }" for row in workers) + "\n);\n")
        os.replace(new, path)
        return path

    return write


def ids(bridge):
    return {worker_id for worker_id, _ in streams(bridge, "/state")}


@pytest.mark.first
@pytest.mark.sanitize
def test_a_generated_list_is_followed_and_the_others_go_on(scene, generated):
    stays, comes, goes = scene.engine(), scene.engine(), scene.engine()
    path = generated(worker(goes, 8))
    aggregator = scene.aggregator()
    bridge = scene.bridge(
        worker(stays, 7), formats=["protobuf"], limits=f'workers_file = "{path}"; watch_files = true;\n')
    for number, one in enumerate((stays, goes, comes)):
        one.publish(store(number))
    wait_for("both are listed", lambda: lists(aggregator, 7, 0)() and lists(aggregator, 8, 1)())

    generated(worker(comes, 9))
    wait_for("the new one is listed", lists(aggregator, 9, 2))
    wait_for("the old one said goodbye", lambda: state_of(aggregator, 8) == "DOWN")
    assert ids(bridge) == {7, 9}
    wait_for("its connection is the same", lambda: bridge.is_connected_once(pod_key="7"))

    generated()
    wait_for("an empty file removes its workers", lambda: ids(bridge) == {7})
    generated(worker(comes, 9), worker(goes, 8))
    wait_for("both workers come back", lambda: ids(bridge) == {7, 8, 9})

    path.write_text("")
    wait_for("a file without a list is refused", lambda: "workers = (); for an empty list" in bridge.text())
    path.unlink()
    rewrite(bridge, worker(stays, 6))
    wait_for("a missing file is refused", lambda: f"{path}:1: cannot read the file" in bridge.text())
    assert ids(bridge) == {7, 8, 9}

    generated(worker(comes, 9))
    wait_for("both files count when it is back", lambda: ids(bridge) == {6, 9})


def test_a_configuration_of_links_is_followed_as_kubernetes_writes_it(scene):
    one, two = scene.engine(), scene.engine()
    bridge = scene.bridge(worker(one, 7), formats=["protobuf"], limits="watch_files = true;\n")
    path = config_of(bridge)

    put_version(path, 1, worker(one, 7))
    (path.parent / "link").symlink_to(f"..data/{path.name}")
    os.replace(path.parent / "link", path)
    wait_for("the file has become a link", lambda: "configuration read again" in bridge.text())
    for version, owner in ((2, 8), (3, 7), (4, 9)):
        put_version(path, version, worker(two, owner))
        wait_for(f"version {version} counts", lambda owner=owner: ids(bridge) == {owner})


def put_version(path, version, row):
    """A version of a ConfigMap with only this worker: a new folder, and the link ..data, replaced
    by a rename."""
    before, _, rest = path.read_text().partition("workers = (\n")
    folder = path.parent / f"..{version}"
    folder.mkdir()
    (folder / path.name).write_text(before + "workers = (\n  { " + row + " }\n);\n" + rest.partition("\n);\n")[2])
    (path.parent / "..data_tmp").symlink_to(folder.name)
    os.replace(path.parent / "..data_tmp", path.parent / "..data")
