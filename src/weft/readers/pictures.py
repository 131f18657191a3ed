"""Pictures as inputs: turned, cut or resized, scaled and laid out as an input's shape and type and its model suggest.

What a caller directs counts first, then what is known of the model (picture_evidence.py), then what is usual.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.readers.picture_evidence import BYTE, IMAGENET_MEAN, IMAGENET_STD, Numbers, PictureEvidence
from weft.records import dataclass

FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000")
"""Those that Pillow decodes by itself: others run programs, or are never photographs."""

MOST_PIXELS = 120_000_000
MOST_DEEP_PIXELS = 30_000_000  # of 16 bits and more
USUAL_SIDE = 224
STEP = 32  # open sides of networks that give places are multiples of it
LONGEST = 1280
CROP_SHARE = 0.875  # of the shorter side, as 224 of 256
SMALL = 128  # pixels of a side, below which nothing can be spared
GREY = 114  # beside a picture that was fitted in
RESIZES = ("crop", "fit", "stretch")
COLOURS = ("rgb", "bgr", "grey")
CHANNELS = {1: "grey", 3: "RGB", 4: "RGBA"}
BITS_PER_SAMPLE, SAMPLE_FORMAT, UNSIGNED = 258, 339, 1  # of TIFF


@dataclass(frozen=True, slots=True)
class PictureDirections:
    """What a caller wants done with pictures; what is None follows from the model.

    scale: what pixels from 0 to 255 are multiplied by, mean and std: what is taken off then, and divided by, one number
    or one for each channel. layout: the letters N, C, H and W in the order of the input's dims. resize: "crop" cuts the
    middle out, "fit" keeps all and puts grey beside it, "stretch" changes the proportions. colours: "rgb", "bgr" or
    "grey".
    """

    scale: float | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    layout: str | None = None
    resize: str | None = None
    colours: str | None = None


UNDIRECTED = PictureDirections()
NO_EVIDENCE = PictureEvidence()


@dataclass(frozen=True, slots=True)
class _Layout:
    letters: str
    channels: int
    height: int | None
    width: int | None
    count: int | None  # of pictures in a batch


@dataclass(frozen=True, slots=True)
class _Scaling:
    scale: float
    mean: Numbers
    std: Numbers
    said: str


def picture_array(
    pictures: Sequence[tuple[str, bytes]],
    spec: TensorSpec,
    directions: PictureDirections = UNDIRECTED,
    evidence: PictureEvidence = NO_EVIDENCE,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Array, str]:
    """Pictures (their names and files) as one array for an input, a batch where there are several; and what was done.

    `sizes` are those of dynamic dims. InputError where the input is none for pictures, or a file is none.
    """
    layout = _layout(spec, directions, sizes or {}, pictures[0][0])
    opened = [_open(content, name) for name, content in pictures]
    height, width = _size(layout, opened[0], evidence)
    resize = _resize(directions, evidence, layout, (height, width))
    scaling = _scaling(spec, layout, directions, evidence)
    parts = []
    for picture in opened:
        sized = _sized(_coloured(picture, layout.channels), height, width, resize, evidence)
        pixels = np.asarray(sized, np.float32).reshape(height, width, layout.channels)
        if _colours(directions, evidence) == "bgr" and layout.channels >= 3:
            pixels = pixels[:, :, [2, 1, 0, *range(3, layout.channels)]]
        parts.append(_laid_out(_scaled(pixels, scaling, spec), layout.letters))
    count = layout.count if "N" in layout.letters else 1
    if count is not None and len(parts) not in (1, count):
        known = "one picture" if count == 1 else f"{count} pictures"
        problem = f"input {spec.name!r} takes {known} at a time, and {len(parts)} were given"
        raise InputError(problem, hint="run the model once for each")
    array = np.stack(parts * (count or 1) if len(parts) == 1 else parts) if "N" in layout.letters else parts[0]
    told = _told(pictures, opened, layout, (height, width), resize, scaling, directions, evidence)
    return np.ascontiguousarray(array), told


# -- the input ---------------------------------------------------------------------------------------------------------


def _layout(spec: TensorSpec, directions: PictureDirections, sizes: Mapping[str, int], name: str) -> _Layout:
    element, shape = spec.element, spec.shape
    if element is None or element is DType.string or element is DType.bool or element.is_complex:
        raise InputError(f"{name}: input {spec.name!r} takes {spec.type}, and no pictures")
    letters = directions.layout or (None if shape is None else _guessed(shape))
    declared = "of any rank" if shape is None else f"({', '.join(map(str, shape))})"
    if letters is None or (shape is not None and len(letters) != len(shape)):
        asked = f" and not {letters}" if letters else ""
        hint = "say how it is laid out, for instance --layout NCHW; or give the data as .npy"
        raise InputError(
            f"{name}: input {spec.name!r} is {declared}{asked}: it is not known how a picture fits", hint=hint
        )
    at = dict(zip(letters, shape or letters))
    known = {letter: sizes.get(dim, dim) if isinstance(dim, str) else dim for letter, dim in at.items()}
    channels = known.get("C", 1 if shape is not None and "C" not in letters else 3)
    if not isinstance(channels, int):
        channels = 1 if directions.colours == "grey" else 3
    if channels not in CHANNELS:
        problem = f"{name}: input {spec.name!r} is {declared}, with {channels} channels"
        raise InputError(problem, hint="pictures have 1, 3 or 4; --layout says where the channels are")
    height, width, count = (size if isinstance(size := known.get(letter), int) else None for letter in "HWN")
    return _Layout(letters, channels, height, width, count)


def _guessed(shape: Sequence[int | str]) -> str | None:
    """How the dims of an input are most likely meant."""

    def channels(place: int) -> bool:
        dim = shape[place]
        return dim in CHANNELS if isinstance(dim, int) else "chan" in dim.lower() or dim.lower() == "c"

    match len(shape):
        case 4 if channels(1):
            return "NCHW"
        case 4 if channels(3):
            return "NHWC"
        case 4 if all(isinstance(dim, str) for dim in shape[1:]):
            return "NCHW"
        case 3 if channels(2):
            return "HWC"
        case 3 if channels(0):
            return "CHW"
        case 3 if isinstance(shape[0], str):
            return "NHW"
        case 2 if all(isinstance(dim, str) for dim in shape) or all(isinstance(dim, int) and dim > 8 for dim in shape):
            return "HW"
    return None


def _size(layout: _Layout, picture: Any, evidence: PictureEvidence) -> tuple[int, int]:
    """Height and width: as the input has them; where it leaves them open, by the model, or the picture's own."""
    height, width = layout.height, layout.width
    if height is not None and width is not None:
        return height, width
    if height is not None:
        return height, _multiple(picture.width * height / picture.height, 8)
    if width is not None:
        return _multiple(picture.height * width / picture.width, 8), width
    if evidence.habit.size is not None:
        return evidence.habit.size
    if evidence.classifies or not evidence.spatial:
        return USUAL_SIDE, USUAL_SIDE
    share = min(1.0, LONGEST / max(picture.size))
    return _multiple(picture.height * share, STEP), _multiple(picture.width * share, STEP)


def _multiple(side: float, step: int) -> int:
    return max(step, round(side / step) * step)


def _resize(directions: PictureDirections, evidence: PictureEvidence, layout: _Layout, size: tuple[int, int]) -> str:
    if directions.resize is not None:
        return directions.resize
    if (layout.height is None) != (layout.width is None):
        return "stretch"  # the open side keeps the proportions
    near_square = max(size) <= 1.4 * min(size)  # else it is for lines of text and the like, which are wanted whole
    return evidence.habit.resize or ("crop" if evidence.classifies and near_square else "stretch")


def _colours(directions: PictureDirections, evidence: PictureEvidence) -> str:
    return directions.colours or evidence.habit.colours or "rgb"


def _scaling(spec: TensorSpec, layout: _Layout, directions: PictureDirections, evidence: PictureEvidence) -> _Scaling:
    habit = evidence.habit
    mean, std, scale = directions.mean, directions.std, directions.scale
    if mean is not None or std is not None or scale is not None:
        mean, std = mean or (0.0,), std or (1.0,)
        if scale is None:
            scale = 1.0 if max(map(abs, mean)) > 1 or max(map(abs, std)) > 4 else 1 / BYTE
        said = _formula(scale, mean, std) + ", as told"
    elif spec.element is not None and not spec.element.is_float:
        scale, std = 1.0, (1.0,)
        mean = (128.0,) if spec.element is DType.int8 else (0.0,)
        said = f"{_formula(scale, mean, std)}, as it takes {spec.element}"
    elif habit.scale is not None:
        scale, mean, std = habit.scale, habit.mean, habit.std
        said = f"{_formula(scale, mean, std)}, {habit.why}"
    elif evidence.classifies and layout.channels == 3:
        scale, mean, std = 1 / BYTE, IMAGENET_MEAN, IMAGENET_STD
        said = f"{_formula(scale, mean, std)}, ImageNet's, as the model gives classes and does not say what it wants"
    else:
        scale, mean, std = 1 / BYTE, (0.0,), (1.0,)
        said = f"{_formula(scale, mean, std)}, as the model does not say what it wants"
    for what, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, layout.channels):
            problem = f"--{what} has {len(numbers)} numbers, but input {spec.name!r} has {layout.channels} channels"
            raise InputError(problem, hint="give one number, or one for each channel")
    if 0.0 in std:
        raise InputError("--std has a 0, and cannot be divided by")
    return _Scaling(scale, mean, std, said)


def _formula(scale: float, mean: Numbers, std: Numbers) -> str:
    pixels = "pixels from 0 to 255" if scale == 1 else "pixels / 255" if scale == 1 / BYTE else f"pixels * {scale:.6g}"
    plain_mean, plain_std = not any(mean), all(number == 1 for number in std)
    if plain_mean and plain_std:
        return pixels
    less = pixels if plain_mean else f"{pixels} - {_numbers(mean)}"
    return less if plain_std else f"({less}) / {_numbers(std)}"


def _numbers(numbers: Numbers) -> str:
    texts = [f"{number:g}" for number in numbers]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


# -- the picture -------------------------------------------------------------------------------------------------------


def _open(content: bytes, name: str) -> Any:
    """The first frame of a picture, turned as its EXIF data say, decoded."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise InputError(f"{name}: pictures need Pillow", hint="pip install pillow") from error
    Image.init()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what large pictures do, and of odd EXIF data
            picture = Image.open(io.BytesIO(content), formats=[each for each in FORMATS if each in Image.OPEN])
            deep = picture.mode.startswith("I") or picture.mode == "F"
            if picture.width * picture.height > (MOST_DEEP_PIXELS if deep else MOST_PIXELS):
                problem = f"{name}: a picture of {picture.width} × {picture.height} pixels, which is too large"
                raise InputError(problem, hint="make it smaller first")
            picture.load()
            full = _full_scale(picture, name) if deep else None
            upright = ImageOps.exif_transpose(picture) or picture
            return upright if full is None else _eight_bits(upright, full, name)
    except InputError:
        raise
    except Exception as error:  # Pillow has many for damaged files
        reason = " ".join(str(error).split())[:200].replace("<_io.BytesIO object at ", "<")
        raise InputError(f"{name}: not a readable picture: {reason}", hint=_hint(content)) from error


def _hint(content: bytes) -> str:
    if content[4:12] in (b"ftypheic", b"ftypmif1"):
        return "convert it to PNG or JPEG first"
    return "give PNG, JPEG, WebP, GIF, BMP or TIFF; the file may be cut off"


def _coloured(picture: Any, channels: int) -> Any:
    """In grey, RGB or RGBA with 8 bits; what is transparent lies on white."""
    from PIL import Image

    if channels == 4:
        return picture.convert("RGBA")
    if picture.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in picture.info:
        above = picture.convert("RGBA")
        ground = Image.new("RGBA", above.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(ground, above)
    return picture.convert("L" if channels == 1 else "RGB")


def _full_scale(picture: Any, name: str) -> float:
    """Return the number that means white, by the file's bit depth: 1 for floats."""
    if picture.mode == "F":
        return 1.0
    tags = getattr(picture, "tag_v2", {})  # of TIFF; other formats have 16 bits, or are scaled to them by Pillow
    bits, form = (int(np.ravel(tags.get(tag, usual))[0]) for tag, usual in ((BITS_PER_SAMPLE, 16), (SAMPLE_FORMAT, 1)))
    if bits > 16 or form != UNSIGNED:
        kind = "unsigned" if form == UNSIGNED else "signed"
        problem = f"{name}: a picture of {kind} {bits}-bit numbers, which have no usual white"
        raise InputError(problem, hint="save it with 8 or 16 bits, or give the numbers as .npy")
    return float(2**bits - 1)


def _eight_bits(picture: Any, full: float, name: str) -> Any:
    """Scale pixels from 0 to `full` to 8 bits."""
    from PIL import Image

    numbers = np.nan_to_num(np.asarray(picture, np.float32))
    if numbers.max(initial=0.0) > full or numbers.min(initial=0.0) < 0:
        problem = f"{name}: its numbers reach from {numbers.min():g} to {numbers.max():g}, and not from 0 to {full:g}"
        raise InputError(problem, hint="scale them first, or give them as .npy")
    return Image.fromarray(np.round(numbers * (255 / full)).astype(np.uint8))


def _sized(picture: Any, height: int, width: int, resize: str, evidence: PictureEvidence) -> Any:
    from PIL import Image

    if not (height > 0 and width > 0 and height * width <= MOST_PIXELS):
        raise InputError(f"{height} × {width} pixels, as the input has them, are too few or too large for a picture")
    methods = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}
    method = methods.get(evidence.habit.resampling or "", Image.Resampling.BILINEAR)
    if picture.size == (width, height):
        return picture
    if resize == "stretch":
        return picture.resize((width, height), method)
    if resize == "fit":
        share = min(width / picture.width, height / picture.height)
        inner = picture.resize((max(1, round(picture.width * share)), max(1, round(picture.height * share))), method)
        ground = Image.new(picture.mode, (width, height), GREY if picture.mode == "L" else (GREY,) * 3)
        ground.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
        return ground
    shorter = evidence.habit.shorter
    share = CROP_SHARE if min(height, width) >= SMALL else 1.0
    if shorter is not None:
        share = min(1.0, min(height, width) / shorter)
    cover = max(width / picture.width, height / picture.height) / share
    side = picture.width - width / cover, picture.height - height / cover
    box = (side[0] / 2, side[1] / 2, picture.width - side[0] / 2, picture.height - side[1] / 2)
    return picture.resize((width, height), method, box=box)


def _scaled(pixels: Array, scaling: _Scaling, spec: TensorSpec) -> Array:
    mean, std = (np.asarray(numbers, np.float32) for numbers in (scaling.mean, scaling.std))
    numbers: Array = (pixels * np.float32(scaling.scale) - mean) / std
    assert spec.element is not None
    if spec.element.is_float:
        return numbers.astype(spec.element.numpy)
    limits = np.iinfo(spec.element.numpy)
    return np.clip(np.round(numbers), limits.min, limits.max).astype(spec.element.numpy)


def _laid_out(pixels: Array, letters: str) -> Array:
    inner = letters.replace("N", "")
    if "C" not in inner:
        pixels = pixels[:, :, 0]
    turned: Array = pixels.transpose(["HWC".index(letter) for letter in inner])
    return turned


def _told(
    pictures: Sequence[tuple[str, bytes]],
    opened: Sequence[Any],
    layout: _Layout,
    size: tuple[int, int],
    resize: str,
    scaling: _Scaling,
    directions: PictureDirections,
    evidence: PictureEvidence,
) -> str:
    first = opened[0]
    more = f" and {len(pictures) - 1} more" if len(pictures) > 1 else ""
    if len(pictures) == 1 and (layout.count or 1) > 1:
        more = f", {layout.count} times"
    height, width = size
    how = {
        "crop": "the middle cut out and resized to",
        "fit": "fitted, with grey beside it, into",
        "stretch": "resized to",
    }[resize]
    done = "taken as it is" if first.size == (width, height) else f"{how} {width} × {height}"
    colours = _colours(directions, evidence)
    channels = "BGR" if colours == "bgr" and layout.channels == 3 else CHANNELS[layout.channels]
    return (
        f"{pictures[0][0]}{more}: {first.width} × {first.height} pixels, {done}, {channels}, {layout.letters}; "
        f"{scaling.said}"
    )
