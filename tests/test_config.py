import subprocess
import sys
from pathlib import Path

import pytest

from fedtranscribe.config import (
    OF_RUNS,
    DpsdSettings,
    FederationSettings,
    Mark,
    SynthesizeSettings,
    TranscribeSettings,
    build,
    marked,
    read_toml,
)
from fedtranscribe.config.sources import new_folder
from fedtranscribe.errors import ConfigError


def test_nested_settings_are_built_and_checked():
    built = build(TranscribeSettings, {"epsilon": 3, "dpsd": {"redraw": 0.5}})
    assert built.epsilon == 3.0
    assert built.dpsd.redraw == 0.5
    with pytest.raises(ConfigError, match=r"dpsd.redraw=1.5"):
        build(TranscribeSettings, {"dpsd": {"redraw": 1.5}})


def test_unknown_names_are_errors():
    with pytest.raises(ConfigError, match=r"Unknown setting dpsd.redrawn; did you mean redraw\?"):
        build(TranscribeSettings, {"dpsd": {"redrawn": 1.0}})


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        DpsdSettings().rows = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_broken_toml_is_one_error(tmp_path: Path):
    path = tmp_path / "settings.toml"
    path.write_text("epsilon = = 3")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(path)
    with pytest.raises(ConfigError, match="Cannot read"):
        read_toml(tmp_path / "absent.toml")


def test_what_may_change_on_resume():
    """A name that joins must change no answer, and no result but by how it was computed."""
    anywhere = {"device", "data_root", "download", "max_gib", "tensorboard", "tracker"}
    anywhere |= {"allow_skipped"}
    assert marked(Mark.RESUMABLE, TranscribeSettings) == anywhere | {
        *("out", "with_generator", "features_weights", "scratch_gib"),
    }
    assert marked(Mark.RESUMABLE, FederationSettings) == anywhere | {
        *("out", "with_generator", "resume", "force", "abandon", "quorum", "slice_seconds"),
        "features_weights",
        *("timeout", "first_timeout", "retries", "retry_after"),
    }
    assert marked(Mark.RESUMABLE, SynthesizeSettings) == anywhere | {
        *("backend", "physical_batch", "checkpoint_seconds", "evaluate", "samples"),
    }


def test_what_is_not_told_and_what_makes_no_run_another():
    waiting = {"timeout", "first_timeout", "retries", "retry_after", "resume", "force"}
    place = {"out", "device", "data_root", "download", "ledger", "tensorboard", "tracker"}
    place |= {"features_weights", "scratch_gib"}
    assert marked(Mark.UNTOLD, *OF_RUNS) == waiting | place | {
        *("data", "ids", "generator", "teacher_weights"),
        *("table", "image_column", "label_column", "id_column", "split_column"),
    }
    assert marked(Mark.INCIDENTAL, *OF_RUNS) == waiting | place | {"seed", "budget", "quorum"}


def test_a_name_bears_the_same_marks_in_all_runs():
    for mark in (Mark.INCIDENTAL, Mark.UNTOLD):
        for name in marked(mark, *OF_RUNS):
            having = [kind for kind in OF_RUNS if name in kind.model_fields]
            assert all(name in marked(mark, kind) for kind in having), name


_EIGHT = """
from multiprocessing import get_context
from fedtranscribe.config.sources import new_folder
with get_context("fork").Pool(8) as pool:
    print(len({*pool.map(new_folder, ["transcribe"] * 8, chunksize=1)}))
"""


def test_runs_that_begin_at_once_get_folders_of_their_own() -> None:
    """Also those of several processes, and nothing is made before a run begins."""
    done = subprocess.run(
        [sys.executable, "-c", _EIGHT], capture_output=True, text=True, check=True
    )
    assert done.stdout == "8\n"
    assert not new_folder("transcribe").exists()
