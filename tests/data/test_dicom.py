"""DICOM files: as a viewer would show them, one id per patient, and no other field read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe.config import OwnData, TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.data.dicom import dicom_field
from fedtranscribe.data.pictures import is_grey, read_picture
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError
from fedtranscribe.privacy.budget import stated, words
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD

pydicom = pytest.importorskip("pydicom")
uid = pydicom.uid

RAMP = np.array([[0, 1_000, 2_000, 4_000]], dtype=np.uint16)


def write(path: Path, pixels: np.ndarray, kind: str = "MONOCHROME2", bits: int = 12, **fields):
    """A DICOM file with these pixels; `fields` come on top."""
    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    made.SOPClassUID = uid.SecondaryCaptureImageStorage
    made.SOPInstanceUID = uid.generate_uid()
    made.PatientName = "Somebody^Secret"
    made.set_pixel_data(pixels, kind, bits, generate_instance_uid=False)
    for name, value in fields.items():
        if value is None:
            delattr(made, name)
        else:
            setattr(made, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "scan.dcm"


# ---------------------------------------------------------------- what a viewer would show


def test_a_window_says_what_is_black_and_white(file):
    # Of 2,000 units about 2,000: 1,000 is black and 3,000 white.
    write(file, RAMP, WindowCenter=2_000.5, WindowWidth=2_001)
    assert read_picture(file).tolist() == [[0, 0, 128, 255]]
    write(file, RAMP, WindowCenter=[2_000.5, 1], WindowWidth=[2_001, 1])
    assert read_picture(file).tolist() == [[0, 0, 128, 255]], "of several windows the first"


def test_a_window_is_in_rescaled_units(file):
    rescaled = {"RescaleSlope": 0.5, "RescaleIntercept": -1_000}
    write(file, RAMP, **rescaled, WindowCenter=0.5, WindowWidth=2_001)
    assert read_picture(file).tolist() == [[0, 64, 128, 255]]
    signed = np.array([[-1_000, 0, 1_000]], dtype=np.int16)
    write(file, signed, bits=16, WindowCenter=0.5, WindowWidth=2_001)
    assert read_picture(file).tolist() == [[0, 128, 255]]


def test_windows_of_other_kinds(file):
    exact = {"WindowCenter": 2_000, "WindowWidth": 4_000, "VOILUTFunction": "LINEAR_EXACT"}
    write(file, RAMP, **exact)
    assert read_picture(file).tolist() == [[0, 64, 128, 255]]
    write(file, RAMP, **{**exact, "VOILUTFunction": "SIGMOID"})
    expected = 255 / (1 + np.exp(-4 * (RAMP - 2_000.0) / 4_000))
    assert read_picture(file).tolist() == expected.round().astype(int).tolist()
    write(file, RAMP, WindowCenter=1_500, WindowWidth=1)
    assert read_picture(file).tolist() == [[0, 0, 255, 255]], "a threshold"
    for width, kind in ((0, "LINEAR"), (-1, "SIGMOID"), (9, "CUBIC")):
        write(file, RAMP, WindowCenter=1, WindowWidth=width, VOILUTFunction=kind)
        with pytest.raises(InvalidDataError, match="has a window of"):
            read_picture(file)


def test_a_look_up_table_goes_before_a_window(file):
    table = pydicom.Dataset()
    table.LUTDescriptor = [4, 0, 8]
    table.LUTData = np.array([0, 10, 200, 255], dtype="<u2").tobytes()
    small = np.array([[0, 1, 2, 3]], dtype=np.uint16)
    window = {"WindowCenter": 2, "WindowWidth": 1}
    write(file, small, bits=8, VOILUTSequence=[table], **window)
    assert read_picture(file).tolist() == [[0, 10, 200, 255]]


def test_without_a_window_the_files_own_percentiles_are_black_and_white(file):
    pixels = np.full((20, 20), 2_000, dtype=np.uint16)
    pixels[0, :2], pixels[1, :2] = 3_000, 1_000
    pixels[2, :2] = 0, 4_000
    write(file, pixels)
    shown = read_picture(file)
    # Half a per cent of 400 pixels on either side: two, so that single ones decide nothing.
    assert shown[2, 0] == 0
    assert shown[2, 1] == 255
    assert shown[0, 0] > 250
    assert shown[1, 0] < 5
    assert shown[5, 5] == 128
    write(file, np.full((4, 4), 7, dtype=np.uint16))
    assert not read_picture(file).any(), "nothing is to be seen where all is alike"


def test_padding_has_no_say(file):
    pixels = np.tile(np.array([[1_000, 2_000]], dtype=np.uint16), (8, 8))
    pixels[:2] = 0
    write(file, pixels, PixelPaddingValue=0)
    shown = read_picture(file)
    assert shown[4, :2].tolist() == [0, 255]


def test_white_as_zero_is_inverted(file):
    write(file, RAMP, "MONOCHROME1", WindowCenter=2_000.5, WindowWidth=2_001)
    assert read_picture(file).tolist() == [[255, 255, 128, 0]]


def test_colour_stays_colour(file):
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    write(file, pixels, "RGB", bits=8)
    assert read_picture(file).tolist() == pixels.tolist()
    assert not is_grey(file)
    assert read_picture(file, OwnData(channels=1)).ndim == 2
    write(file, RAMP)
    assert is_grey(file)


@pytest.mark.parametrize("syntax", ["RLELossless", "JPEG2000Lossless"])
def test_compressed_files_show_the_same(file, syntax):
    pixels = np.random.default_rng(0).integers(0, 4_096, (64, 64), dtype=np.uint16)
    window = {"WindowCenter": 2_000.5, "WindowWidth": 2_001}
    made = write(file, pixels, **window)
    plain = read_picture(file)
    made.compress(getattr(uid, syntax))
    made.save_as(file, enforce_file_format=True)
    assert np.array_equal(read_picture(file), plain)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"NumberOfFrames": 2}, "has 2 frames; store one image per file"),
        ({"PixelData": None}, "holds no picture; remove it"),
        ({"Rows": None}, "holds no picture"),
        ({"PhotometricInterpretation": "HSV"}, "has pixels of kind 'HSV'"),
        ({"BitsStored": 1}, "has 1 bits per pixel; store 8 to 16"),
        ({"Rows": 60_000, "Columns": 60_000}, "60000x60000 pixels"),
        ({"PixelData": b"ab"}, "has pixels that cannot be decoded"),
    ],
)
def test_what_is_not_one_picture_is_refused(file, fields, message):
    write(file, RAMP, **fields)
    with pytest.raises(InvalidDataError, match=message) as error:
        read_picture(file)
    assert "Secret" not in str(error.value)


def test_what_is_no_dicom_file_is_refused(file):
    for content in (b"", b"\0" * 200, b"\x89PNG\r\n"):
        file.write_bytes(content)
        with pytest.raises(InvalidDataError, match="is no DICOM file that can be read"):
            read_picture(file)


def test_a_compression_without_a_decoder_is_named(file):
    made = write(file, RAMP)
    made.file_meta.TransferSyntaxUID = uid.MPEG2MPML
    made.PixelData = pydicom.encaps.encapsulate([b"1234"])
    made["PixelData"].is_undefined_length = True
    made.save_as(file, enforce_file_format=True)
    with pytest.raises(InvalidDataError, match=r"compressed as MPEG2 .*, which no installed"):
        read_picture(file)


def test_the_missing_extra_is_named(file, monkeypatch):
    write(file, RAMP)
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(DataNotFoundError, match=r"fedtranscribe\[dicom\]"):
        read_picture(file)


# ---------------------------------------------------------------- ids from the header


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of each of eight patients, four in each class."""
    for i in range(16):
        patient, kind = f"P{i // 2}", ("ill", "well")[i // 2 % 2]
        pixels = np.random.default_rng(i).integers(0, 4_096, (28, 28), dtype=np.uint16)
        write(tmp_path / "scans" / kind / f"{i}.dcm", pixels, PatientID=patient)
    return tmp_path / "scans"


def test_the_guarantee_is_per_patient_by_the_header_alone(folder):
    own = OwnData(ids=Path("PatientID"))
    split = load(str(folder), own=own)
    both = [set(part.ids) for part in (split.train, split.test)]
    assert both[0] | both[1] == {f"P{i}" for i in range(8)}
    assert both[0].isdisjoint(both[1]), "no patient is in both parts"
    assert split.train.images.shape[1:] == (1, 28, 28)
    assert words(str(stated(own))) == "ids by dicom-field = 'PatientID'"


def test_a_run_on_dicom_files_counts_patients_as_records(folder, tmp_path):
    dpsd = TINY_DPSD.model_copy(update={"moments_steps": 1})
    settings = TranscribeSettings(
        data=str(folder),
        ids=Path("PatientID"),
        epsilon=50,
        budget=51,
        dpsd=dpsd,
        with_generator=False,
        ledger=tmp_path / "ledger.sqlite",
    )
    transcribe(prepare(settings), tmp_path / "run")
    transcribe(prepare(settings), tmp_path / "run", resume=True)
    assert FinishedRun.open(tmp_path / "run").student is not None
    for entry in (tmp_path / "run").rglob("*"):
        assert not entry.is_file() or b"Secret" not in entry.read_bytes()


def test_ids_that_cannot_be_had_are_refused(folder, tmp_path):
    write(folder / "ill" / "nobody.dcm", np.zeros((28, 28), dtype=np.uint16))
    with pytest.raises(InvalidDataError, match=r"a PatientID in each of 17 files, 1 have none"):
        load(str(folder), own=OwnData(ids=Path("PatientID")))
    with pytest.raises(ConfigError, match=r"ids='PatientsName' as a CSV .* or as the name of a"):
        load(str(folder), own=OwnData(ids=Path("PatientsName")))
    with pytest.raises(ConfigError, match="not both"):
        load(str(folder), own=OwnData(ids=Path("PatientID"), id_pattern="(.)"))
    (folder / "ill" / "nobody.dcm").rename(folder / "ill" / "nobody.png")
    with pytest.raises(InvalidDataError, match=r"DICOM files alone with ids='PatientID'"):
        load(str(folder), own=OwnData(ids=Path("PatientID")))


def test_any_field_may_be_the_id(file):
    write(file, RAMP, StudyInstanceUID="1.2.3")
    assert dicom_field("StudyInstanceUID", file) == "1.2.3"
    assert dicom_field("PatientID", file) == ""


def test_a_packed_folder_has_the_same_images(folder, tmp_path):
    from fedtranscribe.data.array_folders import pack

    own = OwnData(ids=Path("PatientID"))
    pack(folder, tmp_path / "packed", own)
    packed, read = load(str(tmp_path / "packed")), load(str(folder), own=own)
    assert torch.equal(packed.train.images, read.train.images)
    assert list(packed.train.ids) == list(read.train.ids)
