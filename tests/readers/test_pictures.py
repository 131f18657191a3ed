"""Pictures as inputs, against Pillow and numpy by hand; what is known of a model, and what is refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.cli.sizes import declared_signature
from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType
from weft.readers.picture_evidence import IMAGENET_MEAN, IMAGENET_STD, Habit, PictureEvidence, picture_evidence
from weft.readers.pictures import PictureDirections, picture_array

Image: Any = pytest.importorskip("PIL.Image")

WIDE = (np.arange(40 * 60 * 3).reshape(40, 60, 3) * 7 % 251).astype(np.uint8)
LINE = PictureDirections(layout="HW")
CLASSES = PictureEvidence(classifies=True)


def spec(dtype: DType, *dims: int | str) -> TensorSpec:
    return TensorSpec("x", dims, TensorType(dtype, dims))


def file(picture: Any, form: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    picture.save(content, form, **options)
    return content.getvalue()


def read(content: bytes, wanted: TensorSpec, *more: Any, **known: Any) -> np.ndarray[Any, Any]:
    return picture_array([("p", content)], wanted, *more, **known)[0]


def resized(picture: Any, width: int, height: int, box: Any = None) -> np.ndarray[Any, Any]:
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR, box=box), np.float32)


def test_the_input_says_layout_size_and_type() -> None:
    picture = Image.fromarray(WIDE)
    plain = resized(picture, 8, 6)
    content = file(picture)
    first = read(content, spec(DType.float32, "n", 3, 6, 8))
    np.testing.assert_allclose(first, plain.transpose(2, 0, 1)[None] / 255, rtol=1e-6)
    np.testing.assert_array_equal(read(content, spec(DType.uint8, 1, 6, 8, 3)), plain[None].astype(np.uint8))
    np.testing.assert_array_equal(read(content, spec(DType.int8, 3, 6, 8)), (plain - 128).transpose(2, 0, 1))
    assert read(content, spec(DType.float16, 6, 8, 3)).dtype == np.float16
    grey = resized(picture.convert("L"), 8, 6)
    np.testing.assert_allclose(read(content, spec(DType.float32, 1, 1, 6, 8))[0, 0], grey / 255, rtol=1e-6)
    np.testing.assert_array_equal(read(content, spec(DType.int32, "n", 6, 8))[0], grey)
    assert read(content, spec(DType.uint8, 1, 4, 6, 8))[0, 3].min() == 255, "alpha"
    assert read(content, spec(DType.float32, "batch", "num_channels", "height", "width")).shape == (1, 3, 224, 224)


def test_open_sides() -> None:
    content = file(Image.fromarray(WIDE))
    assert read(content, spec(DType.float32, 1, 3, 32, "w")).shape == (1, 3, 32, 48)
    places = PictureEvidence(spatial=True)
    assert read(content, spec(DType.float32, 1, 3, "h", "w"), evidence=places).shape == (1, 3, 32, 64)
    known = PictureEvidence(Habit(size=(96, 128)), spatial=True)
    assert read(content, spec(DType.float32, 1, 3, "h", "w"), evidence=known).shape == (1, 3, 96, 128)
    assert read(content, spec(DType.float32, 1, 3, "h", "w"), sizes={"h": 5, "w": 7}).shape == (1, 3, 5, 7)


def test_classifiers_get_the_middle_in_imagenets_scale() -> None:
    picture = Image.fromarray(WIDE)
    cut = resized(picture, 8, 8, box=(10, 0, 50, 40))
    expected = (cut / 255 - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
    found, told = picture_array([("p", file(picture))], spec(DType.float32, 1, 3, 8, 8), evidence=CLASSES)
    np.testing.assert_allclose(found[0], expected.transpose(2, 0, 1), atol=1e-4)
    assert "ImageNet" in told
    assert "60 × 40" in told
    large = read(file(picture), spec(DType.uint8, 160, 160, 3), evidence=CLASSES)
    np.testing.assert_array_equal(large, resized(picture, 160, 160, box=(12.5, 2.5, 47.5, 37.5)))  # 7/8 of 40
    line = read(file(picture), spec(DType.uint8, 16, 64, 3), evidence=CLASSES)
    np.testing.assert_array_equal(line, resized(picture, 64, 16))


def test_what_is_directed_counts() -> None:
    picture = Image.fromarray(WIDE)
    content, wanted = file(picture), spec(DType.float32, 1, 3, 6, 8)
    plain = resized(picture, 8, 6)
    by = PictureDirections(mean=(104.0, 117.0, 123.0), colours="bgr", resize="stretch")
    found = read(content, wanted, by, CLASSES)
    np.testing.assert_allclose(found[0], (plain[:, :, ::-1] - [104, 117, 123]).transpose(2, 0, 1), rtol=1e-5)
    found = read(content, wanted, PictureDirections(scale=1 / 255, mean=(0.5,), std=(0.5,), resize="stretch"))
    np.testing.assert_allclose(found[0], (plain / 127.5 - 1).transpose(2, 0, 1), atol=1e-5)
    fitted = read(content, spec(DType.uint8, 1, 60, 60, 3), PictureDirections(resize="fit"))[0]
    np.testing.assert_array_equal(fitted[10:50], WIDE)
    assert set(np.unique(fitted[:10])) == {114}
    square = spec(DType.uint8, 3, 8, 8, 3)
    assert read(content, square, PictureDirections(layout="NHWC")).shape == (3, 8, 8, 3)
    assert read(content, spec(DType.uint8, 1, 3, 8, 3), PictureDirections(layout="NHWC")).shape == (1, 3, 8, 3)


def test_several_are_a_batch() -> None:
    two = [("a", file(Image.fromarray(WIDE))), ("b", file(Image.fromarray(255 - WIDE)))]
    found, told = picture_array(two, spec(DType.uint8, "n", 40, 60, 3))
    np.testing.assert_array_equal(found, np.stack([WIDE, 255 - WIDE]))
    assert "a and 1 more" in told
    for wanted in (spec(DType.uint8, 40, 60, 3), spec(DType.uint8, 1, 40, 60, 3)):
        with pytest.raises(InputError, match="takes one picture at a time, and 2 were given"):
            picture_array(two, wanted)
    four, told = picture_array(two[:1], spec(DType.uint8, 4, 40, 60, 3))
    assert four.shape == (4, 40, 60, 3)
    assert "4 times" in told


def test_modes() -> None:
    """Grey, palettes, CMYK, 16 bits, floats, transparency and turned pictures mean what people see."""
    rgb = spec(DType.uint8, 40, 60, 3)
    picture = Image.fromarray(WIDE)
    grey = np.asarray(picture.convert("L"))
    for mode, form in (("L", "PNG"), ("P", "GIF"), ("CMYK", "TIFF"), ("YCbCr", "TIFF"), ("1", "PNG"), ("RGB", "WEBP")):
        kept = picture.convert(mode)
        options = {"lossless": True} if form == "WEBP" else {}
        np.testing.assert_array_equal(read(file(kept, form, **options), rgb), np.asarray(kept.convert("RGB")))
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    np.testing.assert_array_equal(read(file(deep), rgb), np.repeat(grey[:, :, None], 3, 2))
    floats = Image.fromarray(grey.astype(np.float32) / 255)
    np.testing.assert_array_equal(read(file(floats, "TIFF"), spec(DType.uint8, 40, 60)), grey)
    clear = np.dstack([WIDE, np.zeros((40, 60), np.uint8)])
    assert read(file(Image.fromarray(clear)), rgb).min() == 255, "what is transparent is white"
    turned = Image.Exif()
    turned[0x0112] = 6
    upright = read(file(picture, "PNG", exif=turned), spec(DType.uint8, 60, 40, 3))
    np.testing.assert_array_equal(upright, np.rot90(WIDE, -1))
    frames = [Image.fromarray(WIDE), Image.fromarray(255 - WIDE)]
    several = file(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    np.testing.assert_array_equal(read(several, rgb), WIDE)


def png_file(width: int, height: int, bits: int, kind: int, rows: bytes) -> bytes:
    def chunk(label: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + label + body + struct.pack(">I", zlib.crc32(label + body))

    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(numbers: Any, bits: int, form: int) -> bytes:
    """Write a TIFF file of one row of pixels."""
    content = b"".join(int(number).to_bytes(bits // 8, "little", signed=form == 2) for number in numbers)
    fields = ((256, len(numbers)), (257, 1), (258, bits), (259, 1), (262, 1), (273, 122), (277, 1), (279, len(content)))
    tags = b"".join(struct.pack("<HHII", tag, 3, 1, number) for tag, number in (*fields, (339, form)))
    return b"II*\0" + struct.pack("<IH", 8, 9) + tags + bytes(4) + content


def png(bits: int, kind: int, *rows: bytes) -> bytes:
    """Write a PNG file whose width follows from the length of a row."""
    width = len(rows[0]) * 8 // bits // {0: 1, 2: 3, 4: 2, 6: 4}[kind]
    return png_file(width, len(rows), bits, kind, b"".join(b"\0" + row for row in rows))


@pytest.mark.parametrize("highest", [1, 200, 255, 256, 40000, 65535])
def test_white_follows_from_the_bit_depth(highest: int) -> None:
    """A dark picture of 16 bits stays dark, in all formats."""
    numbers = np.array([[0, highest // 3, highest]], np.uint16)
    expected = np.round(numbers / 257).astype(np.uint8)
    for form in ("PNG", "TIFF", "PPM"):
        np.testing.assert_array_equal(
            read(file(Image.fromarray(numbers), form), spec(DType.uint8, 1, 3), LINE), expected
        )
    floats = Image.fromarray(numbers.astype(np.float32) / 65535)
    np.testing.assert_array_equal(read(file(floats, "TIFF"), spec(DType.uint8, 1, 3), LINE), expected)


def test_few_bits_and_alpha() -> None:
    cases = {
        png(1, 0, b"\xa0"): [255, 0, 255, 0, 0, 0, 0, 0],
        png(2, 0, b"\x1b"): [0, 85, 170, 255],
        png(4, 0, b"\x0f\x11"): [0, 255, 17, 17],
        png(16, 2, b"\0\x80" * 3): [0],
        png(16, 4, b"\0\x80\xff\xff"): [0],
        png(16, 4, b"\0\x80\0\0"): [255],
    }
    for content, expected in cases.items():
        np.testing.assert_array_equal(read(content, spec(DType.uint8, 1, len(expected)), LINE)[0], expected)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (tiff([0, 255, 70000], 32, 1), "unsigned 32-bit"),
        (tiff([0, 255, 70000], 32, 2), "signed 32-bit"),
        (tiff([-5, 255], 16, 2), "signed 16-bit"),
        (file(Image.fromarray(np.float32([[0, 255]])), "TIFF"), "from 0 to 255, and not from 0 to 1"),
        (file(Image.fromarray(np.float32([[-1, 1]])), "TIFF"), "from -1 to 1"),
    ],
)
def test_numbers_without_a_usual_white_are_refused(content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(content, spec(DType.uint8, 1, 3), LINE)


def bomb(side: int) -> bytes:
    return png_file(side, side, 8, 2, bytes(100))


@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG", bomb(12000), bomb(60000), file(Image.fromarray(WIDE), "JPEG")[:700]]
)
def test_files_that_are_none(content: bytes) -> None:
    with pytest.raises(InputError, match="picture"):
        read(content, spec(DType.uint8, 8, 8, 3))


@pytest.mark.parametrize(
    ("wanted", "by", "problem"),
    [
        (spec(DType.string, 1, 3, 8, 8), {}, "no pictures"),
        (spec(DType.float32, "n", 10), {}, "how a picture fits"),
        (spec(DType.float32, 1, 7, 8, 8), {}, "how a picture fits"),
        (spec(DType.float32, 1, 7, 8, 8), {"layout": "NCHW"}, "7 channels"),
        (spec(DType.float32, 1, 3, 8, 8), {"layout": "HWC"}, "not HWC"),
        (spec(DType.float32, 1, 3, 8, 8), {"mean": (0.1, 0.2)}, "2 numbers"),
        (spec(DType.float32, 1, 3, 8, 8), {"std": (0.0,)}, "0"),
        (spec(DType.float32, 1, 3, 90000, 90000), {}, "too large"),
        (spec(DType.float32, 1, 3, 0, 8), {}, "too few"),
    ],
)
def test_inputs_that_do_not_fit(wanted: TensorSpec, by: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(file(Image.fromarray(WIDE)), wanted, PictureDirections(**by))


def model(path: Path, nodes: list[Any], constants: dict[str, Any], properties: dict[str, str] | None = None) -> Path:
    graph = helper.make_graph(
        [*nodes, helper.make_node("Conv", ["last", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
        + [numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(proto, properties or {})
    onnx.save(proto, path)
    return path


def habit(path: Path) -> Habit:
    declared, source = declared_signature(path)
    return picture_evidence(source, "x", declared.outputs).habit


def arithmetic(first: str, second: str) -> list[Any]:
    return [helper.make_node(first, ["x", "a"], ["z"]), helper.make_node(second, ["z", "b"], ["last"])]


def test_what_a_model_says_of_pictures(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    small = np.float32
    whole = habit(model(path, arithmetic("Sub", "Mul"), {"a": small(127.5), "b": small(0.0078125)}))
    assert whole.scale == 1
    assert "127.5" in whole.why
    shares = {"a": np.float32(IMAGENET_MEAN).reshape(3, 1, 1), "b": np.float32(IMAGENET_STD).reshape(3, 1, 1)}
    assert habit(model(path, arithmetic("Sub", "Div"), shares)).scale == 1 / 255
    same = [helper.make_node("Identity", ["x"], ["last"])]
    assert habit(model(path, same, {})).scale is None
    ultralytics = {"author": "Ultralytics", "imgsz": "[640, 480]", "task": "detect"}
    found = habit(model(path, same, {}, ultralytics))
    assert (found.scale, found.resize, found.size) == (1 / 255, "fit", (640, 480))
    assert habit(model(path, same, {}, {**ultralytics, "imgsz": "['a', 1]"})).size is None
    stated = {"Image.NominalPixelRange": "NominalRange_0_255", "Image.BitmapPixelFormat": "Bgr8"}
    found = habit(model(path, same, {}, stated))
    assert (found.scale, found.colours) == (1, "bgr")
    codes = {"s": np.float32(1 / 127.5), "zero": np.uint8(128)}
    quantized = [
        helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "zero"], ["last"]),
    ]
    found = habit(model(path, quantized, codes))
    assert (found.scale, found.mean, found.std) == (1 / 255, (0.5,), (0.5,))


def test_a_config_beside_the_model(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["last"])], {})
    config = tmp_path / "preprocessor_config.json"
    config.write_text(
        '{"do_center_crop": true, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 248}, '
        '"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2], "resample": 3}'
    )
    found = habit(path)
    assert (found.mean, found.resize, found.size, found.shorter) == ((0.5, 0.4, 0.3), "crop", (224, 224), 248)
    assert found.resampling == "bicubic"
    for hostile in (
        "[]",
        "{",
        '{"image_mean": "x"}',
        '{"image_mean": {"a": 1}}',
        '{"do_rescale": 1, "size": {"height": []}}',
    ):
        config.write_text(hostile)
        assert habit(path).scale in (None, 1 / 255)
