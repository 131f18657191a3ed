"""Convert images to inputs: rotate, crop or resize, normalize and lay out, as the input and its model suggest.

Options of the caller come first, then hints of the model (image_hints.py), then common defaults.
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
from weft.readers.image_hints import BYTE, IMAGENET_MEAN, IMAGENET_STD, ImageHints, Numbers
from weft.records import dataclass

FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000")
"""Those that Pillow decodes itself; others start programs, or are never photographs."""

MOST_PIXELS = 120_000_000
MOST_DEEP_PIXELS = 30_000_000  # with 16 bits or more
DEFAULT_SIDE = 224
STEP = 32  # dynamic sides of spatial models are multiples of it
LONGEST_SIDE = 1280
CROP_FRACTION = 0.875  # of the shorter side: 224 of 256
SMALL = 128  # pixels of a side, below which a centre crop keeps everything
GREY = 114  # padding of resize "fit"
RESIZES = ("crop", "fit", "stretch")
COLOURS = ("rgb", "bgr", "grey")
CHANNELS = {1: "grey", 3: "RGB", 4: "RGBA"}
BITS_PER_SAMPLE, SAMPLE_FORMAT, UNSIGNED = 258, 339, 1  # of TIFF


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How to convert images; None follows the model.

    scale: factor for pixels from 0 to 255. mean, std: subtracted then, and divided by; one number, or one per channel.
    layout: the letters N, C, H and W in the order of the input's dims. resize: "crop" takes the centre, "fit" keeps
    everything and pads with grey, "stretch" changes the aspect ratio. colours: "rgb", "bgr" or "grey".
    """

    scale: float | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    layout: str | None = None
    resize: str | None = None
    colours: str | None = None


DEFAULT_IMAGE_OPTIONS = ImageOptions()
NO_HINTS = ImageHints()


@dataclass(frozen=True, slots=True)
class _Layout:
    letters: str
    channels: int
    height: int | None
    width: int | None
    count: int | None  # of images in a batch


@dataclass(frozen=True, slots=True)
class _Scaling:
    scale: float
    mean: Numbers
    std: Numbers
    note: str


def images_to_input(
    images: Sequence[tuple[str, bytes]],
    spec: TensorSpec,
    options: ImageOptions = DEFAULT_IMAGE_OPTIONS,
    hints: ImageHints = NO_HINTS,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Array, str]:
    """Convert image files, (name, content), to an array for an input, and say how; several images make a batch.

    `sizes` are those of dynamic dims. InputError if the input takes no images, or a file is not an image.
    """
    layout = _find_layout(spec, options, sizes or {}, images[0][0])
    opened = [_open_image(content, name) for name, content in images]
    height, width = _choose_size(layout, opened[0], hints)
    resize = _choose_resize(options, hints, layout, (height, width))
    scaling = _choose_scaling(spec, layout, options, hints)
    parts = []
    for image in opened:
        resized = _resize_image(_convert_colours(image, layout.channels), height, width, resize, hints)
        pixels = np.asarray(resized, np.float32).reshape(height, width, layout.channels)
        if _choose_colours(options, hints) == "bgr" and layout.channels >= 3:
            pixels = pixels[:, :, [2, 1, 0, *range(3, layout.channels)]]
        parts.append(_transpose(_scale_pixels(pixels, scaling, spec), layout.letters))
    count = layout.count if "N" in layout.letters else 1
    if count is not None and len(parts) not in (1, count):
        batch = "one image" if count == 1 else f"{count} images"
        problem = f"input {spec.name!r} takes {batch} at a time, not {len(parts)}"
        raise InputError(problem, hint="run the model once for each")
    array = np.stack(parts * (count or 1) if len(parts) == 1 else parts) if "N" in layout.letters else parts[0]
    note = _describe_conversion(images, opened, layout, (height, width), resize, scaling, options, hints)
    return np.ascontiguousarray(array), note


# -- the input ---------------------------------------------------------------------------------------------------------


def _find_layout(spec: TensorSpec, options: ImageOptions, sizes: Mapping[str, int], name: str) -> _Layout:
    element, shape = spec.element, spec.shape
    if element is None or element is DType.string or element is DType.bool or element.is_complex:
        raise InputError(f"{name}: input {spec.name!r} takes {spec.type}, which is not an image")
    letters = options.layout or (None if shape is None else _guess_layout(shape))
    declared = "of any rank" if shape is None else f"({', '.join(map(str, shape))})"
    if letters is None or (shape is not None and len(letters) != len(shape)):
        requested = f", which does not fit the layout {letters}" if letters else ""
        hint = "name the layout, for instance --layout NCHW; or give the data as .npy"
        raise InputError(
            f"{name}: cannot convert an image to input {spec.name!r} of shape {declared}{requested}", hint=hint
        )
    dims = dict(zip(letters, shape or letters))
    known_sizes = {letter: sizes.get(dim, dim) if isinstance(dim, str) else dim for letter, dim in dims.items()}
    channels = known_sizes.get("C", 1 if shape is not None and "C" not in letters else 3)
    if not isinstance(channels, int):
        channels = 1 if options.colours == "grey" else 3
    if channels not in CHANNELS:
        problem = f"{name}: input {spec.name!r} of shape {declared} has {channels} channels"
        raise InputError(problem, hint="images have 1, 3 or 4; --layout names the axis of the channels")
    height, width, count = (size if isinstance(size := known_sizes.get(letter), int) else None for letter in "HWN")
    return _Layout(letters, channels, height, width, count)


def _guess_layout(shape: Sequence[int | str]) -> str | None:
    """Guess the layout of an input from its shape."""

    def has_channels(axis: int) -> bool:
        dim = shape[axis]
        return dim in CHANNELS if isinstance(dim, int) else "chan" in dim.lower() or dim.lower() == "c"

    match len(shape):
        case 4 if has_channels(1):
            return "NCHW"
        case 4 if has_channels(3):
            return "NHWC"
        case 4 if all(isinstance(dim, str) for dim in shape[1:]):
            return "NCHW"
        case 3 if has_channels(2):
            return "HWC"
        case 3 if has_channels(0):
            return "CHW"
        case 3 if isinstance(shape[0], str):
            return "NHW"
        case 2 if all(isinstance(dim, str) for dim in shape) or all(isinstance(dim, int) and dim > 8 for dim in shape):
            return "HW"
    return None


def _choose_size(layout: _Layout, image: Any, hints: ImageHints) -> tuple[int, int]:
    """Return height and width: those of the input; dynamic ones by the model's preprocessing, or by the image."""
    height, width = layout.height, layout.width
    if height is not None and width is not None:
        return height, width
    if height is not None:
        return height, _round_to_multiple(image.width * height / image.height, 8)
    if width is not None:
        return _round_to_multiple(image.height * width / image.width, 8), width
    if hints.preprocessing.size is not None:
        return hints.preprocessing.size
    if hints.is_classifier or not hints.is_spatial:
        return DEFAULT_SIDE, DEFAULT_SIDE
    share = min(1.0, LONGEST_SIDE / max(image.size))
    return _round_to_multiple(image.height * share, STEP), _round_to_multiple(image.width * share, STEP)


def _round_to_multiple(side: float, step: int) -> int:
    return max(step, round(side / step) * step)


def _choose_resize(options: ImageOptions, hints: ImageHints, layout: _Layout, size: tuple[int, int]) -> str:
    if options.resize is not None:
        return options.resize
    if (layout.height is None) != (layout.width is None):
        return "stretch"  # the dynamic side keeps the aspect ratio
    near_square = max(size) <= 1.4 * min(size)  # wide inputs, as for lines of text, need the whole image
    return hints.preprocessing.resize or ("crop" if hints.is_classifier and near_square else "stretch")


def _choose_colours(options: ImageOptions, hints: ImageHints) -> str:
    return options.colours or hints.preprocessing.colours or "rgb"


def _choose_scaling(spec: TensorSpec, layout: _Layout, options: ImageOptions, hints: ImageHints) -> _Scaling:
    model = hints.preprocessing
    mean, std, scale = options.mean, options.std, options.scale
    if mean is not None or std is not None or scale is not None:
        mean, std = mean or (0.0,), std or (1.0,)
        if scale is None:
            scale = 1.0 if max(map(abs, mean)) > 1 or max(map(abs, std)) > 4 else 1 / BYTE
        note = _format_scaling(scale, mean, std) + ", as requested"
    elif spec.element is not None and not spec.element.is_float:
        scale, std = 1.0, (1.0,)
        mean = (128.0,) if spec.element is DType.int8 else (0.0,)
        note = f"{_format_scaling(scale, mean, std)}, as the input is {spec.element}"
    elif model.scale is not None:
        scale, mean, std = model.scale, model.mean, model.std
        note = f"{_format_scaling(scale, mean, std)}, {model.reason}"
    elif hints.is_classifier and layout.channels == 3:
        scale, mean, std = 1 / BYTE, IMAGENET_MEAN, IMAGENET_STD
        note = (
            f"{_format_scaling(scale, mean, std)}, ImageNet's, assumed for a classifier without preprocessing metadata"
        )
    else:
        scale, mean, std = 1 / BYTE, (0.0,), (1.0,)
        note = f"{_format_scaling(scale, mean, std)}, assumed without preprocessing metadata"
    for option, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, layout.channels):
            problem = f"--{option} has {len(numbers)} numbers, but input {spec.name!r} has {layout.channels} channels"
            raise InputError(problem, hint="give one number, or one for each channel")
    if 0.0 in std:
        raise InputError("--std must not contain 0")
    return _Scaling(scale, mean, std, note)


def _format_scaling(scale: float, mean: Numbers, std: Numbers) -> str:
    pixels = "pixels from 0 to 255" if scale == 1 else "pixels / 255" if scale == 1 / BYTE else f"pixels * {scale:.6g}"
    no_mean, no_std = not any(mean), all(number == 1 for number in std)
    if no_mean and no_std:
        return pixels
    shifted = pixels if no_mean else f"{pixels} - {_format_numbers(mean)}"
    return shifted if no_std else f"({shifted}) / {_format_numbers(std)}"


def _format_numbers(numbers: Numbers) -> str:
    texts = [f"{number:g}" for number in numbers]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


# -- the image ---------------------------------------------------------------------------------------------------------


def _open_image(content: bytes, name: str) -> Any:
    """Decode the first frame of an image, rotated by its EXIF orientation."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise InputError(f"{name}: images need Pillow", hint="pip install 'weft-onnx[image]'") from error
    Image.init()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images and invalid EXIF data
            image = Image.open(io.BytesIO(content), formats=[each for each in FORMATS if each in Image.OPEN])
            deep = image.mode.startswith("I") or image.mode == "F"
            if image.width * image.height > (MOST_DEEP_PIXELS if deep else MOST_PIXELS):
                problem = f"{name}: an image of {image.width} × {image.height} pixels is too large"
                raise InputError(problem, hint="shrink it first")
            image.load()
            full = _full_scale(image, name) if deep else None
            upright = ImageOps.exif_transpose(image) or image
            return upright if full is None else _convert_to_8_bits(upright, full, name)
    except InputError:
        raise
    except Exception as error:  # Pillow raises many kinds for damaged files
        reason = " ".join(str(error).split())[:200].replace("<_io.BytesIO object at ", "<")
        raise InputError(f"{name}: not a readable image: {reason}", hint=_conversion_hint(content)) from error


def _conversion_hint(content: bytes) -> str:
    if content[4:12] in (b"ftypheic", b"ftypmif1"):
        return "convert it to PNG or JPEG first"
    return "give PNG, JPEG, WebP, GIF, BMP or TIFF; the file may be truncated"


def _convert_colours(image: Any, channels: int) -> Any:
    """Convert to 8-bit grey, RGB or RGBA; transparent pixels become white."""
    from PIL import Image

    if channels == 4:
        return image.convert("RGBA")
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        foreground = image.convert("RGBA")
        background = Image.new("RGBA", foreground.size, (255, 255, 255, 255))
        image = Image.alpha_composite(background, foreground)
    return image.convert("L" if channels == 1 else "RGB")


def _full_scale(image: Any, name: str) -> float:
    """Return the value of white for the file's bit depth; 1 for floats."""
    if image.mode == "F":
        return 1.0
    tags = getattr(image, "tag_v2", {})  # of TIFF; other formats have 16 bits, or are scaled to them by Pillow
    bits, form = (int(np.ravel(tags.get(tag, usual))[0]) for tag, usual in ((BITS_PER_SAMPLE, 16), (SAMPLE_FORMAT, 1)))
    if bits > 16 or form != UNSIGNED:
        kind = "unsigned" if form == UNSIGNED else "signed"
        problem = f"{name}: an image of {kind} {bits}-bit numbers has no defined white"
        raise InputError(problem, hint="save it with 8 or 16 bits, or give the numbers as .npy")
    return float(2**bits - 1)


def _convert_to_8_bits(image: Any, full: float, name: str) -> Any:
    """Scale pixels from 0 to `full` to 8 bits."""
    from PIL import Image

    numbers = np.nan_to_num(np.asarray(image, np.float32))
    if numbers.max(initial=0.0) > full or numbers.min(initial=0.0) < 0:
        problem = f"{name}: its pixels range from {numbers.min():g} to {numbers.max():g}, not from 0 to {full:g}"
        raise InputError(problem, hint="scale them first, or give them as .npy")
    return Image.fromarray(np.round(numbers * (255 / full)).astype(np.uint8))


def _resize_image(image: Any, height: int, width: int, resize: str, hints: ImageHints) -> Any:
    from PIL import Image

    if not (height > 0 and width > 0 and height * width <= MOST_PIXELS):
        raise InputError(f"an input of {height} × {width} pixels is empty or too large for an image")
    methods = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}
    method = methods.get(hints.preprocessing.resampling or "", Image.Resampling.BILINEAR)
    if image.size == (width, height):
        return image
    if resize == "stretch":
        return image.resize((width, height), method)
    if resize == "fit":
        share = min(width / image.width, height / image.height)
        inner = image.resize((max(1, round(image.width * share)), max(1, round(image.height * share))), method)
        padded = Image.new(image.mode, (width, height), GREY if image.mode == "L" else (GREY,) * 3)
        padded.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
        return padded
    shorter = hints.preprocessing.shorter
    share = CROP_FRACTION if min(height, width) >= SMALL else 1.0
    if shorter is not None:
        share = min(1.0, min(height, width) / shorter)
    zoom = max(width / image.width, height / image.height) / share
    margins = image.width - width / zoom, image.height - height / zoom
    box = (margins[0] / 2, margins[1] / 2, image.width - margins[0] / 2, image.height - margins[1] / 2)
    return image.resize((width, height), method, box=box)


def _scale_pixels(pixels: Array, scaling: _Scaling, spec: TensorSpec) -> Array:
    mean, std = (np.asarray(numbers, np.float32) for numbers in (scaling.mean, scaling.std))
    numbers: Array = (pixels * np.float32(scaling.scale) - mean) / std
    assert spec.element is not None
    if spec.element.is_float:
        return numbers.astype(spec.element.numpy)
    limits = np.iinfo(spec.element.numpy)
    return np.clip(np.round(numbers), limits.min, limits.max).astype(spec.element.numpy)


def _transpose(pixels: Array, letters: str) -> Array:
    inner = letters.replace("N", "")
    if "C" not in inner:
        pixels = pixels[:, :, 0]
    transposed: Array = pixels.transpose(["HWC".index(letter) for letter in inner])
    return transposed


def _describe_conversion(
    images: Sequence[tuple[str, bytes]],
    opened: Sequence[Any],
    layout: _Layout,
    size: tuple[int, int],
    resize: str,
    scaling: _Scaling,
    options: ImageOptions,
    hints: ImageHints,
) -> str:
    first = opened[0]
    more = f" and {len(images) - 1} more" if len(images) > 1 else ""
    if len(images) == 1 and (layout.count or 1) > 1:
        more = f", {layout.count} times"
    height, width = size
    resizing = {
        "crop": "centre crop, resized to",
        "fit": "padded with grey and resized to",
        "stretch": "resized to",
    }[resize]
    change = "unchanged" if first.size == (width, height) else f"{resizing} {width} × {height}"
    colours = _choose_colours(options, hints)
    channels = "BGR" if colours == "bgr" and layout.channels == 3 else CHANNELS[layout.channels]
    return (
        f"{images[0][0]}{more}: {first.width} × {first.height} pixels, {change}, {channels}, {layout.letters}; "
        f"{scaling.note}"
    )
