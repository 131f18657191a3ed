"""The `precision` option: the same values on all devices, and reports of narrowed products."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from test_api import X, Y, affine

import weft
from weft.cache import serialization
from weft.cli import main
from weft.ir.compiled import CompiledProgram, build_compiled_program
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel, MultiplyTiles, Repeat, Sums, TileForm
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import Launch, NativeSection, Task, Work
from weft.runtime.explain import narrowed_products
from weft.runtime.options import PRECISIONS

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_all_devices_accept_the_same_values(device: str, precision: str) -> None:
    model = weft.load(affine(), device=device, precision=precision)
    np.testing.assert_allclose(model(X)[0], Y, rtol=1e-6)
    assert model.narrowed() == ()
    (share,) = model.report().shares
    assert (share.precision, share.narrowed) == (precision, ())
    assert ("no product was narrowed" in str(model.report())) is (precision != "float32")


def test_tf32_has_the_bits_of_float32_on_the_cpu() -> None:
    outputs = [weft.load(affine(), device="cpu", precision=precision)(X)[0] for precision in ("float32", "tf32")]
    assert outputs[0].tobytes() == outputs[1].tobytes()


def multiplying(tile: DType, operand: DType) -> CompiledProgram:
    """Build a program whose only task multiplies tiles of one type with operands of another."""
    tiles = [Buffer(name, tile, True, 256, TileForm(16, 16)) for name in ("left", "right")]
    body = (Sums("sums", 16, 16, DType.float32), Repeat("k", 0, 2, 1, (MultiplyTiles("sums", "left", "right"),)))
    launch = Launch(Kernel("product", tuple(tiles), (), 32, body), 1, (), ())
    task = Task(Work((launch,)), (Value(0, TensorType(operand, (16, 16))),), (), "node", template="tiles")
    return build_compiled_program(
        weft.load(affine(), device="reference").program, (NativeSection((task,), {}, (), ()),), ()
    )


@pytest.mark.parametrize(
    ("tile", "operand", "operands"),
    [
        (DType.float32, DType.float32, "tf32"),
        (DType.float16, DType.float32, "float16"),
        (DType.float16, DType.float16, None),  # a model that is narrow itself
        (DType.bfloat16, DType.float32, None),  # parts that hold all bits
    ],
)
def test_narrowed_products_are_reported_by_tile_type(tile: DType, operand: DType, operands: str | None) -> None:
    whole = multiplying(tile, operand)
    saved = serialization.serialize(whole)
    restored = serialization.restore(saved.structure, memoryview(b""))
    for products in (narrowed_products(whole), narrowed_products(restored)):  # whose kernels have no bodies any more
        assert [(product.node, product.operands) for product in products] == (
            [] if operands is None else [("node", operands)]
        )


def printed(capsys: Capture, *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def test_commands_accept_precision(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "affine.onnx"
    onnx.save(affine(), path)
    report = json.loads(printed(capsys, "run", path, "--device", "cpu", "--precision", "tf32", "--explain", "--json"))
    assert (report["precision"], report["narrowed"]) == ("tf32", [])
    text = printed(capsys, "run", path, "--device", "cpu", "--precision", "tf32", "--explain")
    assert "no product was narrowed" in text
    assert "no product was narrowed" in printed(capsys, "report", path, "--device", "cpu", "--precision", "tf32")
    text = printed(capsys, "compare", path, "--devices", "reference,cpu", "--precision", "tf32")
    assert "cpu: precision tf32: no product was narrowed" in text
    assert "contract" in printed(capsys, "kernels", path, "--device", "cpu", "--precision", "fast")
