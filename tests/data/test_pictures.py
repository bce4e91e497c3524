"""Every kind of image file keeps its pixels, or is refused."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedtranscribe.config import OwnData
from fedtranscribe.data import load
from fedtranscribe.data.pictures import read_picture
from fedtranscribe.errors import InvalidDataError

RAMP = np.array([[0, 257, 32_768, 65_535]], dtype=np.uint16)
TWELVE = np.array([[0, 16, 2_048, 4_095]], dtype=np.uint16)


def png(width, height, depth, colour, row, header=b""):
    """A PNG of a kind that Pillow does not write."""

    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    facts = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + row for _ in range(min(height, 2))))
    parts = chunk(b"IHDR", facts) + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("name", ["scan.png", "scan.tiff"])
def test_sixteen_bit_grey_is_scaled_by_a_constant(tmp_path, name):
    Image.fromarray(RAMP).save(tmp_path / name)
    assert read_picture(tmp_path / name, OwnData(bit_depth=16)).tolist() == [[0, 1, 128, 255]]
    with pytest.raises(InvalidDataError, match="--bit-depth 16"):
        read_picture(tmp_path / name)


def test_twelve_of_sixteen_bits(tmp_path):
    Image.fromarray(TWELVE).save(tmp_path / "scan.png")
    assert read_picture(tmp_path / "scan.png", OwnData(bit_depth=12)).tolist() == [[0, 1, 128, 255]]
    Image.fromarray(RAMP).save(tmp_path / "scan.png")
    with pytest.raises(InvalidDataError, match=r"within 0\.\.4095"):
        read_picture(tmp_path / "scan.png", OwnData(bit_depth=12))


def test_a_dark_picture_does_not_brighten_another(tmp_path):
    for name, pixels in (("dark.png", RAMP // 4), ("bright.png", RAMP)):
        Image.fromarray(pixels).save(tmp_path / name)
    dark, bright = (
        read_picture(tmp_path / name, OwnData(bit_depth=16)) for name in ("dark.png", "bright.png")
    )
    assert (dark.max(), bright.max()) == (64, 255)


def test_a_folder_of_sixteen_bit_pictures_is_not_white(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for i in range(20):
            pixels = rng.integers(0, 65_536, (8, 8), dtype=np.uint16)
            Image.fromarray(pixels).save(tmp_path / label / f"{label}{i}.png")
    images = load(str(tmp_path), own=OwnData(bit_depth=16)).train.images
    assert (images == 255).float().mean() < 0.05
    assert 100 < images.float().mean() < 155


def test_a_pgm_states_its_own_range(tmp_path):
    (tmp_path / "scan.pgm").write_bytes(b"P5 2 1 4095\n" + TWELVE[:, ::3].astype(">u2").tobytes())
    assert read_picture(tmp_path / "scan.pgm").tolist() == [[0, 255]]


def test_sixteen_bits_per_colour_are_refused(tmp_path):
    # Grey with alpha, colour, colour with alpha: Pillow would keep the upper byte alone.
    for colour, values in ((4, 2), (2, 3), (6, 4)):
        (tmp_path / "deep.png").write_bytes(png(1, 1, 16, colour, b"\x0f\xff" * values))
        with pytest.raises(InvalidDataError, match="16 bits per colour"):
            read_picture(tmp_path / "deep.png", OwnData(bit_depth=12))


def test_a_deep_tiff_whose_white_is_zero(tmp_path):
    Image.fromarray(RAMP).save(tmp_path / "x.tiff", tiffinfo={262: 0})
    with pytest.raises(InvalidDataError, match="white as zero"):
        read_picture(tmp_path / "x.tiff", OwnData(bit_depth=16))


def test_palette(tmp_path):
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 200, 0, 0, 0, 100])
    image.putdata([2, 0, 1])
    image.save(tmp_path / "p.png")
    assert read_picture(tmp_path / "p.png").tolist() == [[[0, 0, 100], [255, 0, 0], [0, 200, 0]]]


def test_one_bit(tmp_path):
    Image.fromarray(np.array([[True, False, True]])).save(tmp_path / "1.png")
    assert read_picture(tmp_path / "1.png").tolist() == [[255, 0, 255]]
    (tmp_path / "2.png").write_bytes(png(4, 1, 2, 0, bytes([0b00011011])))
    assert read_picture(tmp_path / "2.png").tolist() == [[0, 85, 170, 255]]


@pytest.mark.parametrize(
    ("mode", "solid", "clear", "seen"),
    [
        ("RGBA", (9, 8, 7, 255), (9, 8, 7, 254), [9, 8, 7]),
        ("LA", (9, 255), (9, 0), 9),
    ],
)
def test_transparency_is_refused_and_full_opacity_is_not(tmp_path, mode, solid, clear, seen):
    image = Image.new(mode, (2, 1), solid)
    image.save(tmp_path / "x.png")
    assert read_picture(tmp_path / "x.png").tolist() == [[seen, seen]]
    image.putpixel((1, 0), clear)
    image.save(tmp_path / "x.png")
    with pytest.raises(InvalidDataError, match="transparent"):
        read_picture(tmp_path / "x.png")


def test_a_transparent_entry_of_a_palette_or_of_grey_values(tmp_path):
    for mode in ("P", "L", "I;16"):
        Image.new(mode, (2, 1), 0).save(tmp_path / "x.png", transparency=0)
        with pytest.raises(InvalidDataError, match="transparent"):
            read_picture(tmp_path / "x.png", OwnData(bit_depth=16))


@pytest.mark.parametrize("name", ["x.jpg", "x.tiff"])
def test_cmyk(tmp_path, name):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / name)
    assert read_picture(tmp_path / name)[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_rotated_by_exif(tmp_path, name):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    pixels = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / name, exif=exif)
    assert read_picture(tmp_path / name).tolist() == [[4, 1], [5, 2], [6, 3]]
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / name, exif=exif)
    deep = read_picture(tmp_path / name, OwnData(bit_depth=16))
    assert deep.tolist() == [[4, 1], [5, 2], [6, 3]]


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_several_frames(tmp_path, name):
    frames = [Image.new("L", (4, 4), value) for value in (0, 99)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with pytest.raises(InvalidDataError, match="2 frames"):
        read_picture(tmp_path / name)


def test_a_telephones_picture_with_further_views(tmp_path):
    views = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 0, 0))]
    views[0].save(tmp_path / "x.jpg", "MPO", save_all=True, append_images=views[1:])
    assert read_picture(tmp_path / "x.jpg")[4, 4, 0] > 250


def test_a_bmp_of_16_bits_for_all_three_colours(tmp_path):
    head = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 58, 0, 0, 54, 40, 1, 1, 1, 16, 0, 4, 0, 0, 0, 0)
    (tmp_path / "x.bmp").write_bytes(head + struct.pack("<HH", 0b0_11111_00000_11111, 0))
    assert read_picture(tmp_path / "x.bmp").tolist() == [[[255, 0, 255]]]


def test_kinds_whose_values_cannot_be_kept(tmp_path):
    Image.fromarray(np.array([[0.5, 700.0]], dtype=np.float32)).save(tmp_path / "f.tiff")
    with pytest.raises(InvalidDataError, match="kind 'F'"):
        read_picture(tmp_path / "f.tiff")
    Image.fromarray(np.array([[0, -5]], dtype=np.int32)).save(tmp_path / "i.tiff")
    with pytest.raises(InvalidDataError, match=r"within 0\.\.65535"):
        read_picture(tmp_path / "i.tiff", OwnData(bit_depth=16))
    Image.new("L", (4, 4)).save(tmp_path / "gif.png", "GIF")
    with pytest.raises(InvalidDataError, match=r"gif\.png' cannot be read"):
        read_picture(tmp_path / "gif.png")


def test_deep_arrays_of_an_archive(tmp_path):
    images = np.tile(TWELVE, (40, 4, 1))
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(40) % 2, classes=2)
    with pytest.raises(InvalidDataError, match="--bit-depth"):
        load(str(tmp_path / "x.npz"))
    read = load(str(tmp_path / "x.npz"), own=OwnData(bit_depth=12)).train.images
    assert read[0, 0, 0].tolist() == [0, 1, 128, 255]


def test_a_picture_that_is_not_square_is_cut_or_padded(tmp_path):
    Image.fromarray(np.full((8, 16), 200, dtype=np.uint8)).save(tmp_path / "wide.png")
    cut = read_picture(tmp_path / "wide.png", OwnData(image_size=8))
    padded = read_picture(tmp_path / "wide.png", OwnData(image_size=8, fit="pad"))
    assert (cut == 200).all()
    assert padded.tolist() == [[0] * 8] * 2 + [[200] * 8] * 4 + [[0] * 8] * 2
