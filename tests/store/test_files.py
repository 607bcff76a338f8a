"""Whole files only."""

import pytest

from groupwise.store.files import remove_litter, sha256, write_text, write_whole


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "config.yaml"
    write_text(path, "old")
    write_text(path, "new: é\n")
    assert path.read_bytes() == "new: é\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "report.html"
    write_text(path, "old")

    def torn(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, torn)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_litter_of_a_killed_process_is_swept_and_nothing_else(tmp_path):
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts/.tmp-77-step_000001.parquet").touch()
    (tmp_path / "rollouts/step_000001.parquet").touch()
    (tmp_path / "checkpoints/.tmp-77-step_000002").mkdir(parents=True)
    (tmp_path / "checkpoints/.tmp-77-step_000002/.tmp-77-state.json").touch()
    remove_litter(tmp_path)
    kept = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert kept == ["checkpoints", "rollouts", "rollouts/step_000001.parquet"]


def test_sha256_is_the_standard_one(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
