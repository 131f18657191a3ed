"""Split many images into batches, so that a run needs the memory of one batch only."""

from __future__ import annotations

import stat
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.inputs import FILLS
from weft.cli.sizes import sizes_for
from weft.errors import InputError
from weft.ir.specs import TensorSpec
from weft.readers.content import DataSource, Kind
from weft.readers.derived_inputs import main_inputs
from weft.readers.read import expand_folder
from weft.records import dataclass
from weft.runtime.model import Model

BATCH = 32  # images at a time, if neither the model nor the user fixes the batch


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """The arguments of one run, and the image files that its rows belong to.

    padding: how often `args` repeat the last image to fill a fixed batch.
    open_dims: dims of the image input, except the batch, whose sizes follow from the first image.
    """

    args: Namespace
    files: tuple[str, ...] = ()
    padding: int = 0
    open_dims: tuple[str, ...] = ()

    def with_image_size(self, sizes: Mapping[str, int]) -> Namespace:
        """Return the arguments with the image size of the first batch."""
        shape = [*self.args.shape, *(f"{dim}={sizes[dim]}" for dim in self.open_dims)]
        # one open side keeps the proportions of the first image, so the reader stretches the others to it
        resize = self.args.resize or ("stretch" if len(self.open_dims) == 1 else None)
        return Namespace(**{**vars(self.args), "shape": shape, "resize": resize})


def split_images(args: Namespace, model: Model) -> list[ImageBatch]:
    """Return the batches to run: several, if the images do not fit into one and each output has a row for each image.

    A batch has the size that the model or the options fix, else at most `BATCH`.
    """
    specs = {spec.name: spec for spec in (*model.inputs, *model.defaults)}
    name, images, others = _find_images(args, specs)
    if not images:
        return [ImageBatch(args)]
    candidates = [specs[name]] if name else main_inputs(model.inputs, Kind.IMAGE)
    batch_dim = _batch_dim(candidates[0], model.outputs) if len(candidates) == 1 else None
    if batch_dim is None or any(_may_hold_batch(text, specs, batch_dim) for text in others):
        return [ImageBatch(args, tuple(images))]
    user_sizes = sizes_for(args, tuple(specs.values()))
    fixed = batch_dim if isinstance(batch_dim, int) else user_sizes.get(batch_dim)
    if len(images) in (1, fixed) or (fixed is None and len(images) <= BATCH):
        return [ImageBatch(args, tuple(images))]
    dims = (candidates[0].shape or ())[1:]
    open_dims = tuple(dim for dim in dims if isinstance(dim, str) and dim not in user_sizes)
    size = fixed or BATCH
    batches = []
    for start in range(0, len(images), size):
        files = images[start : start + size]
        padding = size - len(files) if fixed else 0
        sources = [f"{name}={file}" if name else file for file in (*files, *[files[-1]] * padding)]
        arguments = Namespace(**{**vars(args), "input": [*others, *sources], "data": []})
        batches.append(ImageBatch(arguments, tuple(files), padding, open_dims))
    return batches


def join_outputs(parts: Sequence[Mapping[str, Any]], batches: Sequence[ImageBatch]) -> dict[str, Any]:
    """Concatenate the outputs of all batches, without the rows that fill the last one."""
    padding = batches[-1].padding
    trimmed = [*parts[:-1], {name: rows[:-padding] for name, rows in parts[-1].items()} if padding else parts[-1]]
    if len(trimmed) == 1:
        return dict(trimmed[0])
    return {name: np.concatenate([part[name] for part in trimmed]) for name in parts[0]}


def _find_images(args: Namespace, specs: Mapping[str, TensorSpec]) -> tuple[str, list[str], list[str]]:
    """Return the input that several images or a folder are for ("" if not named), the images, and other sources.

    There are no images if there is only a single file, or if images are for several inputs.
    """
    images: dict[str, list[str]] = {}
    others = []
    for text in (*args.input, *args.data):
        name = max((name for name in specs if text.startswith(f"{name}=")), key=len, default="")
        path = text[len(name) + 1 :] if name else text
        files = _list_images(path)
        if files:
            images.setdefault(name, []).extend(files)
        else:
            others.append(text)
    name, files = next(iter(images.items()), ("", []))
    is_single = len(files) == 1 and files[0] in (*args.data, *(text[len(name) + 1 :] for text in args.input))
    return (name, files, others) if len(images) == 1 and not is_single else ("", [], others)


def _list_images(path: str) -> list[str]:
    """Return the images at a path; pipes and standard input, which can be read only once, are left alone."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # no such file, or not a file name at all
        return []
    source = DataSource(path)
    is_image = stat.S_ISREG(mode) and source.kind is Kind.IMAGE
    is_folder = stat.S_ISDIR(mode) and not (source.path / "input_0.pb").exists()
    with suppress(InputError):  # a folder without images
        return [file.name for file in expand_folder(source)] if is_image or is_folder else []
    return []


def _batch_dim(spec: TensorSpec, outputs: Sequence[TensorSpec]) -> int | str | None:
    """Return the first dim of an image input if all outputs begin with it."""
    if spec.shape is None or len(spec.shape) < 3 or (isinstance(spec.shape[0], int) and len(spec.shape) != 4):
        return None
    return spec.shape[0] if all(each.shape and each.shape[0] == spec.shape[0] for each in outputs) else None


def _may_hold_batch(text: str, specs: Mapping[str, TensorSpec], batch_dim: int | str) -> bool:
    """Whether a source may be an array for all images at once."""
    named = [spec for name, spec in specs.items() if text.startswith(f"{name}=")]
    if text in FILLS or any(text == f"{spec.name}={fill}" for spec in named for fill in FILLS):
        return False
    return not named or any(batch_dim in (spec.shape or ()) for spec in named)
