"""Images: box suppression, unfolding and unpooling against onnxruntime and numpy; decoding and its failures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.backends.reference.host import images
from weft.errors import ExecutionError

PICTURE = random_array(1, (5, 7, 3), np.uint8, 0, 255)


@pytest.mark.parametrize("centers", [0, 1])
@pytest.mark.parametrize(
    ("limit", "overlap", "least"), [(3, 0.5, None), (100, 0.2, 0.4), (0, 0.5, 0.0), (5, None, None)]
)
def test_non_max_suppression(centers: int, limit: int, overlap: float | None, least: float | None) -> None:
    boxes = random_array(2, (2, 40, 4), low=0, high=1)
    scores = np.round(random_array(3, (2, 3, 40), low=0, high=1), 1)
    thresholds = [None if number is None else np.array([number], np.float32) for number in (overlap, least)]
    inputs = [boxes, scores, np.array([limit], np.int64), *thresholds]
    while inputs[-1] is None:
        inputs.pop()
    check("NonMaxSuppression", inputs, opset=11, center_point_box=centers)


def test_nothing_is_selected_without_a_limit() -> None:
    inputs = [random_array(4, (1, 3, 4)), random_array(5, (1, 1, 3))]
    check("NonMaxSuppression", inputs, opset=11)


@pytest.mark.parametrize(
    ("image", "block", "options"),
    [
        ((5, 6), (2, 3), {}),
        ((5, 6), (2, 2), {"pads": [1, 0, 1, 2], "strides": [2, 1]}),
        ((7, 7), (2, 3), {"dilations": [2, 3], "strides": [1, 1]}),
        ((3, 4, 5), (1, 2, 2), {}),
    ],
)
def test_col2im(image: tuple[int, ...], block: tuple[int, ...], options: dict[str, Any]) -> None:
    rank = len(image)
    pads = options.get("pads", [0] * 2 * rank)
    strides, dilations = options.get("strides", [1] * rank), options.get("dilations", [1] * rank)
    counts = [
        (image[a] + pads[a] + pads[a + rank] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in range(rank)
    ]
    x = random_array(6, (2, 3 * int(np.prod(block)), int(np.prod(counts))))
    inputs = [x, np.array(image, np.int64), np.array(block, np.int64)]
    check("Col2Im", inputs, opset=18, rtol=1e-4, atol=1e-5, **options)
    check("Col2Im", inputs, opset=18, rtol=1e-4, atol=1e-5, constants=[1, 2], **options)


def test_max_unpool() -> None:
    x = random_array(7, (1, 2, 3, 2))
    places = np.arange(2 * 6 * 4).reshape(2, 3, 2, 2, 2).transpose(0, 1, 3, 2, 4).reshape(1, 2, 3, 2, 4)
    indices = np.ascontiguousarray(places[..., 1]).astype(np.int64)
    check("MaxUnpool", [x, indices], opset=11, kernel_shape=[2, 2], strides=[2, 2])


def encoded(kind: str) -> Any:
    pillow = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    pillow.fromarray(PICTURE).save(stream, kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm"])
def test_lossless_pictures(kind: str) -> None:
    check("ImageDecoder", [encoded(kind)], opset=20, expected=[PICTURE])
    check("ImageDecoder", [encoded(kind)], opset=20, pixel_format="BGR", expected=[PICTURE[:, :, ::-1]])


def test_what_is_no_picture_decodes_to_nothing() -> None:
    broken = [np.zeros(10, np.uint8), encoded("png")[:40]]
    for stream in broken:
        check("ImageDecoder", [stream], opset=20, expected=[np.zeros((0, 0, 3), np.uint8)])


def test_without_pillow_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(images, "import_module", refuse)
    stream = np.zeros(10, np.uint8)
    with pytest.raises(ExecutionError, match="pip install pillow"):
        run_weft(node_model("ImageDecoder", [stream], opset=20), [stream])
