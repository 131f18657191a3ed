"""Images as inputs, compared with Pillow and numpy; hints of models; refused files and inputs."""

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
from weft.readers.image_hints import IMAGENET_MEAN, IMAGENET_STD, ImageHints, Preprocessing, find_image_hints
from weft.readers.images import ImageOptions, images_to_input

Image: Any = pytest.importorskip("PIL.Image")

WIDE = (np.arange(40 * 60 * 3).reshape(40, 60, 3) * 7 % 251).astype(np.uint8)
LINE = ImageOptions(layout="HW")
CLASSIFIER = ImageHints(is_classifier=True)


def spec(dtype: DType, *dims: int | str) -> TensorSpec:
    return TensorSpec("x", dims, TensorType(dtype, dims))


def file(image: Any, form: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


def read(content: bytes, declared: TensorSpec, *arguments: Any, **keywords: Any) -> np.ndarray[Any, Any]:
    return images_to_input([("p", content)], declared, *arguments, **keywords)[0]


def resized(image: Any, width: int, height: int, box: Any = None) -> np.ndarray[Any, Any]:
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box=box), np.float32)


def test_layout_size_and_type_follow_the_input() -> None:
    image = Image.fromarray(WIDE)
    plain = resized(image, 8, 6)
    content = file(image)
    first = read(content, spec(DType.float32, "n", 3, 6, 8))
    np.testing.assert_allclose(first, plain.transpose(2, 0, 1)[None] / 255, rtol=1e-6)
    np.testing.assert_array_equal(read(content, spec(DType.uint8, 1, 6, 8, 3)), plain[None].astype(np.uint8))
    np.testing.assert_array_equal(read(content, spec(DType.int8, 3, 6, 8)), (plain - 128).transpose(2, 0, 1))
    assert read(content, spec(DType.float16, 6, 8, 3)).dtype == np.float16
    grey = resized(image.convert("L"), 8, 6)
    np.testing.assert_allclose(read(content, spec(DType.float32, 1, 1, 6, 8))[0, 0], grey / 255, rtol=1e-6)
    np.testing.assert_array_equal(read(content, spec(DType.int32, "n", 6, 8))[0], grey)
    assert read(content, spec(DType.uint8, 1, 4, 6, 8))[0, 3].min() == 255, "alpha"
    assert read(content, spec(DType.float32, "batch", "num_channels", "height", "width")).shape == (1, 3, 224, 224)


def test_dynamic_sides() -> None:
    content = file(Image.fromarray(WIDE))
    assert read(content, spec(DType.float32, 1, 3, 32, "w")).shape == (1, 3, 32, 48)
    spatial = ImageHints(is_spatial=True)
    assert read(content, spec(DType.float32, 1, 3, "h", "w"), hints=spatial).shape == (1, 3, 32, 64)
    with_size = ImageHints(Preprocessing(size=(96, 128)), is_spatial=True)
    assert read(content, spec(DType.float32, 1, 3, "h", "w"), hints=with_size).shape == (1, 3, 96, 128)
    assert read(content, spec(DType.float32, 1, 3, "h", "w"), sizes={"h": 5, "w": 7}).shape == (1, 3, 5, 7)


def test_classifiers_get_a_centre_crop_with_imagenet_statistics() -> None:
    image = Image.fromarray(WIDE)
    cut = resized(image, 8, 8, box=(10, 0, 50, 40))
    expected = (cut / 255 - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
    array, note = images_to_input([("p", file(image))], spec(DType.float32, 1, 3, 8, 8), hints=CLASSIFIER)
    np.testing.assert_allclose(array[0], expected.transpose(2, 0, 1), atol=1e-4)
    assert "ImageNet" in note
    assert "60 × 40" in note
    large = read(file(image), spec(DType.uint8, 160, 160, 3), hints=CLASSIFIER)
    np.testing.assert_array_equal(large, resized(image, 160, 160, box=(12.5, 2.5, 47.5, 37.5)))  # 7/8 of 40
    line = read(file(image), spec(DType.uint8, 16, 64, 3), hints=CLASSIFIER)
    np.testing.assert_array_equal(line, resized(image, 64, 16))


def test_options_come_first() -> None:
    image = Image.fromarray(WIDE)
    content, declared = file(image), spec(DType.float32, 1, 3, 6, 8)
    plain = resized(image, 8, 6)
    options = ImageOptions(mean=(104.0, 117.0, 123.0), colours="bgr", resize="stretch")
    array = read(content, declared, options, CLASSIFIER)
    np.testing.assert_allclose(array[0], (plain[:, :, ::-1] - [104, 117, 123]).transpose(2, 0, 1), rtol=1e-5)
    array = read(content, declared, ImageOptions(scale=1 / 255, mean=(0.5,), std=(0.5,), resize="stretch"))
    np.testing.assert_allclose(array[0], (plain / 127.5 - 1).transpose(2, 0, 1), atol=1e-5)
    padded = read(content, spec(DType.uint8, 1, 60, 60, 3), ImageOptions(resize="fit"))[0]
    np.testing.assert_array_equal(padded[10:50], WIDE)
    assert set(np.unique(padded[:10])) == {114}
    square = spec(DType.uint8, 3, 8, 8, 3)
    assert read(content, square, ImageOptions(layout="NHWC")).shape == (3, 8, 8, 3)
    assert read(content, spec(DType.uint8, 1, 3, 8, 3), ImageOptions(layout="NHWC")).shape == (1, 3, 8, 3)


def test_several_images_make_a_batch() -> None:
    two = [("a", file(Image.fromarray(WIDE))), ("b", file(Image.fromarray(255 - WIDE)))]
    array, note = images_to_input(two, spec(DType.uint8, "n", 40, 60, 3))
    np.testing.assert_array_equal(array, np.stack([WIDE, 255 - WIDE]))
    assert "a and 1 more" in note
    for declared in (spec(DType.uint8, 40, 60, 3), spec(DType.uint8, 1, 40, 60, 3)):
        with pytest.raises(InputError, match="takes one image at a time, not 2"):
            images_to_input(two, declared)
    four, note = images_to_input(two[:1], spec(DType.uint8, 4, 40, 60, 3))
    assert four.shape == (4, 40, 60, 3)
    assert "4 times" in note


def test_modes() -> None:
    """Read grey, palettes, CMYK, 16 bits, floats, transparency and EXIF orientation as viewers show them."""
    rgb = spec(DType.uint8, 40, 60, 3)
    image = Image.fromarray(WIDE)
    grey = np.asarray(image.convert("L"))
    for mode, form in (("L", "PNG"), ("P", "GIF"), ("CMYK", "TIFF"), ("YCbCr", "TIFF"), ("1", "PNG"), ("RGB", "WEBP")):
        converted = image.convert(mode)
        options = {"lossless": True} if form == "WEBP" else {}
        np.testing.assert_array_equal(read(file(converted, form, **options), rgb), np.asarray(converted.convert("RGB")))
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    np.testing.assert_array_equal(read(file(deep), rgb), np.repeat(grey[:, :, None], 3, 2))
    floats = Image.fromarray(grey.astype(np.float32) / 255)
    np.testing.assert_array_equal(read(file(floats, "TIFF"), spec(DType.uint8, 40, 60)), grey)
    clear = np.dstack([WIDE, np.zeros((40, 60), np.uint8)])
    assert read(file(Image.fromarray(clear)), rgb).min() == 255, "transparent pixels are white"
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = read(file(image, "PNG", exif=exif), spec(DType.uint8, 60, 40, 3))
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
    """A dark image of 16 bits stays dark, in all formats."""
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
        (file(Image.fromarray(np.float32([[0, 255]])), "TIFF"), "from 0 to 255, not from 0 to 1"),
        (file(Image.fromarray(np.float32([[-1, 1]])), "TIFF"), "from -1 to 1"),
    ],
)
def test_numbers_without_a_defined_white_are_refused(content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(content, spec(DType.uint8, 1, 3), LINE)


def bomb(side: int) -> bytes:
    return png_file(side, side, 8, 2, bytes(100))


@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG", bomb(12000), bomb(60000), file(Image.fromarray(WIDE), "JPEG")[:700]]
)
def test_files_that_are_no_images(content: bytes) -> None:
    with pytest.raises(InputError, match="image"):
        read(content, spec(DType.uint8, 8, 8, 3))


@pytest.mark.parametrize(
    ("declared", "options", "problem"),
    [
        (spec(DType.string, 1, 3, 8, 8), {}, "which is not an image"),
        (spec(DType.float32, "n", 10), {}, "cannot convert"),
        (spec(DType.float32, 1, 7, 8, 8), {}, "cannot convert"),
        (spec(DType.float32, 1, 7, 8, 8), {"layout": "NCHW"}, "7 channels"),
        (spec(DType.float32, 1, 3, 8, 8), {"layout": "HWC"}, "does not fit the layout HWC"),
        (spec(DType.float32, 1, 3, 8, 8), {"mean": (0.1, 0.2)}, "2 numbers"),
        (spec(DType.float32, 1, 3, 8, 8), {"std": (0.0,)}, "0"),
        (spec(DType.float32, 1, 3, 90000, 90000), {}, "too large"),
        (spec(DType.float32, 1, 3, 0, 8), {}, "empty"),
    ],
)
def test_inputs_that_do_not_fit(declared: TensorSpec, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(file(Image.fromarray(WIDE)), declared, ImageOptions(**options))


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


def preprocessing_of(path: Path) -> Preprocessing:
    declared, source = declared_signature(path)
    return find_image_hints(source, "x", declared.outputs).preprocessing


def arithmetic(first: str, second: str) -> list[Any]:
    return [helper.make_node(first, ["x", "a"], ["z"]), helper.make_node(second, ["z", "b"], ["last"])]


def test_preprocessing_hints(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    small = np.float32
    whole = preprocessing_of(model(path, arithmetic("Sub", "Mul"), {"a": small(127.5), "b": small(0.0078125)}))
    assert whole.scale == 1
    assert "127.5" in whole.reason
    constants = {"a": np.float32(IMAGENET_MEAN).reshape(3, 1, 1), "b": np.float32(IMAGENET_STD).reshape(3, 1, 1)}
    assert preprocessing_of(model(path, arithmetic("Sub", "Div"), constants)).scale == 1 / 255
    same = [helper.make_node("Identity", ["x"], ["last"])]
    assert preprocessing_of(model(path, same, {})).scale is None
    ultralytics = {"author": "Ultralytics", "imgsz": "[640, 480]", "task": "detect"}
    preprocessing = preprocessing_of(model(path, same, {}, ultralytics))
    assert (preprocessing.scale, preprocessing.resize, preprocessing.size) == (1 / 255, "fit", (640, 480))
    assert preprocessing_of(model(path, same, {}, {**ultralytics, "imgsz": "['a', 1]"})).size is None
    metadata = {"Image.NominalPixelRange": "NominalRange_0_255", "Image.BitmapPixelFormat": "Bgr8"}
    preprocessing = preprocessing_of(model(path, same, {}, metadata))
    assert (preprocessing.scale, preprocessing.colours) == (1, "bgr")
    codes = {"s": np.float32(1 / 127.5), "zero": np.uint8(128)}
    quantized = [
        helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "zero"], ["last"]),
    ]
    preprocessing = preprocessing_of(model(path, quantized, codes))
    assert (preprocessing.scale, preprocessing.mean, preprocessing.std) == (1 / 255, (0.5,), (0.5,))


def test_a_config_beside_the_model(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["last"])], {})
    config = tmp_path / "preprocessor_config.json"
    config.write_text(
        '{"do_center_crop": true, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 248}, '
        '"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2], "resample": 3}'
    )
    preprocessing = preprocessing_of(path)
    assert (preprocessing.mean, preprocessing.resize, preprocessing.size, preprocessing.shorter) == (
        (0.5, 0.4, 0.3),
        "crop",
        (224, 224),
        248,
    )
    assert preprocessing.resampling == "bicubic"
    for hostile in (
        "[]",
        "{",
        '{"image_mean": "x"}',
        '{"image_mean": {"a": 1}}',
        '{"do_rescale": 1, "size": {"height": []}}',
    ):
        config.write_text(hostile)
        assert preprocessing_of(path).scale in (None, 1 / 255)
