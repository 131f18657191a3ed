"""Export all real models as C libraries, and compare bits: `python -m export.all_models [--more] [NAME...]`.

Needs `PYTHONPATH=src:tests` and a C compiler. Prints a line for each model, with the outcome for several sizes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import numpy as np
from export.shared_library import SharedLibrary, same_bits
from models.catalog import CatalogModel, load_catalog, random_inputs, size_variants

import weft
from weft.export.export import export_c

SIZES = 4  # sets of sizes for each model


def compare(model: CatalogModel) -> Iterator[str]:
    """Yield the outcome for each set of sizes."""
    with tempfile.TemporaryDirectory() as folder:
        library = SharedLibrary(export_c(str(model.file), folder, name="exported"))
        loaded = weft.load(str(model.file), device="cpu", threads=1)
        for sizes in list(size_variants(model))[:SIZES]:
            inputs = random_inputs(model, sizes)
            try:
                expected = loaded.run(inputs)
            except weft.WeftError as error:
                yield f"Python refuses: {error.problem[:60]}"
                continue
            try:
                results = library.run(inputs)
            except (RuntimeError, ValueError) as error:
                yield f"refused: {error}"
                continue
            same = all(map(same_bits, results, map(np.asarray, expected.values())))
            yield "same" if same and len(results) == len(expected) else "DIFFERENT"
        library.close()


def main(arguments: list[str]) -> None:
    names = [argument for argument in arguments if not argument.startswith("--")]
    for model in load_catalog(more="--more" in arguments):
        if names and model.name not in names:
            continue
        if model.missing is not None:
            print(f"{model.name}: {model.missing}", flush=True)
            continue
        try:
            outcome = ", ".join(compare(model))
        except weft.WeftError as error:
            outcome = f"not exported: {str(error).replace(chr(10), ' ')}"
        print(f"{model.name}: {outcome}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
