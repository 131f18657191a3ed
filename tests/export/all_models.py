"""Every real model as a C library, compared bit by bit: `python -m export.all_models [--more] [NAME...]`.

Needs `PYTHONPATH=src:tests` and a C compiler. A line for each model says what came of it for several sizes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import numpy as np
from export.calling import Called, same_bits
from models.catalog import CatalogModel, load_catalog, random_inputs, size_variants

import weft
from weft.export.export import export_c

SIZES = 4  # that are tried of each model


def outcomes(model: CatalogModel) -> Iterator[str]:
    """What came of a model for each set of sizes."""
    with tempfile.TemporaryDirectory() as folder:
        called = Called(export_c(str(model.file), folder, name="exported"))
        loaded = weft.load(str(model.file), device="cpu", threads=1)
        for sizes in list(size_variants(model))[:SIZES]:
            inputs = random_inputs(model, sizes)
            try:
                wanted = loaded.run(inputs)
            except weft.WeftError as error:
                yield f"Python refuses: {error.problem[:60]}"
                continue
            try:
                made = called.run(inputs)
            except (RuntimeError, ValueError) as error:
                yield f"refused: {error}"
                continue
            same = all(map(same_bits, made, map(np.asarray, wanted.values())))
            yield "same" if same and len(made) == len(wanted) else "DIFFERENT"
        called.close()


def main(arguments: list[str]) -> None:
    names = [argument for argument in arguments if not argument.startswith("--")]
    for model in load_catalog(more="--more" in arguments):
        if names and model.name not in names:
            continue
        if model.missing is not None:
            print(f"{model.name}: {model.missing}", flush=True)
            continue
        try:
            told = ", ".join(outcomes(model))
        except weft.WeftError as error:
            told = f"not exported: {str(error).replace(chr(10), ' ')}"
        print(f"{model.name}: {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
