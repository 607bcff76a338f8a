"""Checkpoints come back as they were or not at all, whatever happens to their files."""

import json
import shutil

import pytest
import torch

from groupwise.store import checkpoint as store
from groupwise.store.checkpoint import Checkpoint, load_newest, rotate, save_checkpoint


def make(step):
    tensors = {"weight": torch.arange(6.0).reshape(2, 3) + step, "count": torch.tensor([step])}
    return Checkpoint(step, tensors, {"position": step * 32, "names": ["a", "b"]})


def saved(folder, *steps, keep=9):
    for step in steps:
        save_checkpoint(folder, make(step), keep)
    return folder


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    loaded, reasons = load_newest(saved(tmp_path / "c", 5))
    assert reasons == []
    assert loaded.step == 5
    assert loaded.numbers == make(5).numbers
    assert {name: t.tolist() for name, t in loaded.tensors.items()} == {
        n: t.tolist() for n, t in make(5).tensors.items()
    }


def test_tensors_that_share_memory_are_saved_apart(tmp_path):
    base = torch.arange(4.0)
    save_checkpoint(tmp_path, Checkpoint(1, {"all": base, "half": base[:2], "turned": base.reshape(2, 2).T}, {}), 1)
    tensors = load_newest(tmp_path)[0].tensors
    assert tensors["half"].tolist() == [0.0, 1.0]
    assert tensors["turned"].tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_the_newest_by_number_is_taken_and_the_oldest_are_rotated_away(tmp_path):
    saved(tmp_path, 9, 10, 999999, 1000000, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000010", "step_1000000", "step_999999"]
    assert load_newest(tmp_path)[0].step == 1000000


def test_rotation_leaves_later_folders_that_may_be_damaged(tmp_path):
    saved(tmp_path, 1, 2, 3, 4)
    rotate(tmp_path, 3, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003", "step_000004"]


def test_a_step_saved_again_replaces_the_first(tmp_path):
    saved(tmp_path, 3)
    save_checkpoint(tmp_path, Checkpoint(3, {}, {"position": -1}), 2)
    assert load_newest(tmp_path)[0].numbers == {"position": -1}


def test_no_checkpoint_is_no_error(tmp_path):
    assert load_newest(tmp_path / "none") == (None, [])


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "emptied", "zeroed"])
def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path, name, damage):
    saved(tmp_path, 1, 2)
    path = tmp_path / "step_000002" / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        changed = {"cut": content[:-1], "flipped": content, "emptied": b"", "zeroed": bytes(len(content))}
        path.write_bytes(changed[damage])
    loaded, reasons = load_newest(tmp_path)
    if name == "manifest.json" and damage == "flipped" and not reasons:
        # A bit of the manifest's own white space may flip without a change of meaning.
        assert json.loads(path.read_text())["step"] == loaded.step == 2
    else:
        assert loaded.step == 1
        assert [reason.split(":")[0] for reason in reasons] == ["checkpoint step_000002 is damaged and passed over"]


def test_every_cut_of_every_file_is_recognised(tmp_path):
    saved(tmp_path, 1)
    for path in sorted((tmp_path / "step_000001").iterdir()):
        whole = path.read_bytes()
        for end in range(0, len(whole), max(1, len(whole) // 50)):
            path.write_bytes(whole[:end])
            assert load_newest(tmp_path)[0] is None, (path.name, end)
        path.write_bytes(whole)
    assert load_newest(tmp_path)[0].step == 1


def test_every_flipped_bit_of_the_tensors_is_recognised(tmp_path):
    saved(tmp_path, 1)
    path = tmp_path / "step_000001" / "state.safetensors"
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        assert load_newest(tmp_path)[0] is None


def test_stray_folders_and_files_are_left_alone(tmp_path):
    saved(tmp_path, 4)
    for name in ("step_9", "step_abc", "step_000009.tmp", ".tmp-1-step_000008", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_000007").write_text("a file")
    loaded, reasons = load_newest(tmp_path)
    assert (loaded.step, reasons) == (4, [])


def test_a_folder_renamed_to_a_later_step_is_not_believed(tmp_path):
    saved(tmp_path, 4)
    shutil.copytree(tmp_path / "step_000004", tmp_path / "step_000008")
    loaded, reasons = load_newest(tmp_path)
    assert loaded.step == 4
    assert "not one of schema 1 for step 8" in reasons[0]


def test_a_manifest_cannot_point_outside_its_folder(tmp_path):
    saved(tmp_path, 1)
    path = tmp_path / "step_000001" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../secret"] = {"size": 0, "sha256": ""}
    path.write_text(json.dumps(manifest))
    assert "does not name the files of a checkpoint" in load_newest(tmp_path)[1][0]


def test_a_full_disk_leaves_the_old_checkpoint_and_no_litter(tmp_path, monkeypatch):
    saved(tmp_path, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, make(2), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    assert load_newest(tmp_path)[0].step == 1
