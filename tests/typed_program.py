"""A program that uses the whole public interface, for type checkers: `mypy --strict` reads it in scripts/check.

Lines that must be refused are marked as errors, and mypy complains where one of them is none. tests/test_types.py runs
what can be run of it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import assert_type

import weft
import weft.server

Array = np.ndarray[Any, Any]


def load_sources(path: Path, content: bytes) -> list[weft.Model]:
    """A model from everything that holds one."""

    class Exported:
        """As torch's exporter gives it."""

        @property
        def model_proto(self) -> object:
            raise NotImplementedError

    exported: weft.ModelSource = Exported()
    assert exported is not None
    with path.open("rb") as file:
        return [
            weft.load(path),
            weft.load(str(path)),
            weft.load(source=content),
            weft.load(bytearray(content)),
            weft.load(memoryview(content)),
            weft.load(io.BytesIO(content)),
            weft.load(file),
        ]


def load_with_options(path: Path, folder: Path) -> weft.Model:
    """Every option of a load."""
    return weft.load(
        path,
        device=["cpu"],
        strict=False,
        warm="background",
        sample={"x": np.ones((1, 4), np.float32)},
        threads=1,
        precision="strict",
        memory_limit="1GB",
        prefer="speed",
        outputs=["y"],
        cache=False,
        trusted=False,
        recompile=True,
        dump=folder / "dump",
        tune=None,
    )


def call_wrongly(path: Path) -> None:
    """Calls that a type checker must reject."""
    weft.load(path, precision="double")  # type: ignore[arg-type]
    weft.load(path, prefer="size")  # type: ignore[arg-type]
    weft.load(path, warm=True)  # type: ignore[arg-type]
    weft.load(path, providers=["CPUExecutionProvider"])  # type: ignore[call-arg]
    weft.load(3)  # type: ignore[arg-type]
    weft.quantize(path, path, to="int3")  # type: ignore[arg-type]
    weft.quantize(path, path)  # type: ignore[call-arg]
    weft.optimize(path, opsets=3)  # type: ignore[call-arg]
    weft.DevicePolicy(pick="random")  # type: ignore[arg-type]
    weft.load(path).bench(repeat=3)  # type: ignore[call-arg]


def describe(model: weft.Model) -> str:
    """Read every description of a model."""
    assert_type(model.file, str)
    assert_type(model.device, str)
    assert_type(model.devices, tuple[str, ...])
    spec = model.inputs[0]
    assert_type(spec, weft.TensorSpec)
    assert_type(model.inputs["x"], weft.TensorSpec)
    assert_type(spec.name, str)
    assert_type(spec.shape, "tuple[int | str, ...] | None")
    assert_type(model.metadata, weft.Metadata)
    assert_type(model.metadata.properties, Mapping[str, str])
    for each in model.outputs:
        assert_type(each, weft.TensorSpec)
    steps: Sequence[weft.HostStep] = model.explain()
    memory = model.memory({"batch": 2})
    assert_type(memory, weft.Memory)
    assert_type(memory.peak, int)
    report = model.report()
    assert_type(report, weft.DeviceReport)
    attempts: Sequence[weft.Attempt] = report.attempts
    names = [device.name for device in weft.devices() if device.available]
    assert_type(names, list[str])
    devices: list[weft.Device] = weft.devices()
    return f"{steps} {memory} {report} {attempts} {devices} {dir(weft)} {model!r} {model}"


def run_model(model: weft.Model, x: Array) -> Array:
    """Run a model in every way."""
    results = model.run({"x": x}, outputs=["y"], timeout=60, cancel=weft.Cancellation())
    device_tensor = model.run({"x": x}, keep=True)["y"]
    assert isinstance(device_tensor, weft.DeviceTensor)
    assert_type(device_tensor.numpy(), Array)
    again: weft.DeviceTensor = model.to_device(x)
    placed: weft.DeviceTensor = weft.to_device(x, "cpu")
    into: Array = np.empty_like(results["y"])
    model.run({"x": again}, into={"y": into})
    model(placed)
    model.set_weight("w", np.zeros_like(model.weights["w"]))
    model.set_weights({"w": model.weights["w"]})
    return into


def continue_state(folder: Path) -> int:
    """Hold a state between runs."""
    graph = weft.Graph("memory")
    past = graph.input("past", ("length", 4), "float32")
    graph.output(weft.ops.concat(past, graph.input("x", (1, 4), "float32"), axis=0), "present")
    model = graph.compile(device="cpu")
    state = model.state(capacity={"length": 8}, pairs={"past": "present"})
    assert_type(state, weft.State)
    model.run({"x": np.ones((1, 4), np.float32)}, state=state)
    other: weft.State = state.copy()
    state.truncate(state.length - 1)
    other.save(folder / "memory.state")
    state.load(folder / "memory.state")
    assert_type(other.numpy(), dict[str, Array])
    assert_type(state.length, int)
    return model.memory(state=other).state


def generate_text() -> str:
    """Generate text with the model that comes with weft."""
    options = weft.GenerationOptions(max_new_tokens=4, temperature=0.5, seed=1, stop=("\n",))
    with weft.Generator(device="cpu", max_length=64, memory_limit="100MB", max_batch=2) as generator:
        memory: weft.GenerationMemory = generator.memory()
        answer: weft.Answer = generator("A list is", max_new_tokens=options.max_new_tokens, logprobs=0)
        stream: weft.AnswerStream = generator.stream("A list is", max_new_tokens=4)
        for piece in stream:
            assert_type(piece, str)
        assert_type(stream.answer(), weft.Answer)
        assert_type(generator.chat([{"role": "user", "content": "What is a list?"}], max_new_tokens=4), weft.Answer)
        assert_type(answer.tokens, tuple[int, ...])
        assert_type(memory.peak, int)
        return answer


async def run_in_event_loop(model: weft.Model, x: Array) -> dict[str, Any]:
    results = await model.run_async({"x": x})
    assert_type(results, dict[str, Any])
    return results


def measure(model: weft.Model, folder: Path) -> float:
    """Use random inputs, benchmarks and profiles."""
    inputs = weft.random_inputs(model, batch=2, shapes={"x": (2, 4)}, seed=1)
    np.save(folder / "x.npy", inputs["x"])
    read = weft.read_inputs(model, {"x": folder / "x.npy"}, resize="fit")
    assert_type(read, dict[str, Any])
    profile: weft.Profile = model.profile(read, repeat=2)
    profile = model.profile(batch=2, repeat=1)
    profile.save(folder / "profile.json")
    bench: weft.Benchmark = model.bench(batch=2, seconds=0.01)
    assert_type(bench.median, float)
    assert_type(bench.runs, int)
    assert_type(profile.kernels[0].seconds, float)
    assert_type(model.deviation(), dict[str, float])
    kernels: weft.KernelList = model.kernels
    kernel: weft.ModelKernel = kernels[0]
    assert_type(kernel.code, dict[str, str])
    comparison: weft.ModelComparison = weft.compare(model, read, devices=["reference", "cpu"], quick=True)
    assert_type(comparison.agrees, bool)
    return bench.median + profile.seconds


def write_models(path: Path, folder: Path) -> tuple[weft.OptimizationReport, weft.QuantizationReport]:
    """Write a model in every format."""
    weft.load(path).save(folder / "saved.onnx")
    page: Path = weft.view(path, folder / "page.html", open=False)
    assert page.is_file()
    weft.compile(path, folder / "ahead.weft", device="cpu", precision="float32", sizes={"batch": 1})
    weft.export_c(path, folder / "c", name="tiny", precision="float32", sizes={"batch": 1})
    optimized = weft.optimize(path, folder / "optimized.onnx", sizes={"batch": 1}, exact=True)
    quantized = weft.quantize(
        path, folder / "small.onnx", to="int8", calibration="minmax", keep=[], samples=2, measure=False
    )
    assert_type(optimized.nodes, tuple[int, int])
    assert_type(quantized.error, float)
    return optimized, quantized


def run_many_rows(path: Path, model: weft.Model) -> weft.BatchFunction:
    """Run on many rows, here and on other machines."""
    for outputs in model.map([np.ones(4, np.float32)], batch_size=8, workers=2, errors="return", shared={}):
        assert_type(outputs, dict[str, Any])
    function = weft.batch(path, columns={"x": ["a", "b"]}, outputs={"y": "scores"}, ship="bytes", threads=1)
    weft.batch(path, ship="mail")  # type: ignore[arg-type]
    weft.spark_udf(path, outputs=["y"], batch_size=64)
    weft.ray_deployment(model, ship="path")
    return function


def serve_models(path: Path, model: weft.Model) -> str:
    """Answer requests over HTTP and gRPC."""
    with weft.server.start({"a": path, "b": model}, max_batch=8, device="cpu") as server:
        address = assert_type(server.url, str)
    app = weft.server.app(path, max_wait=0.001)
    weft.serve([path], http=8000, grpc=None, workers=2, on_ready=lambda server: print(server.ports))
    return address + repr(app)


def build_model() -> weft.Model:
    """Build y = relu(x @ w) in Python."""
    graph = weft.Graph("tiny")
    x: weft.Tensor = graph.input("x", ("batch", 4), "float32")
    y = weft.ops.relu(x @ graph.parameter("w", np.ones((4, 3), np.float32)))
    graph.output(y, "y")
    return graph.compile(device=weft.DevicePolicy(allow=["cpu"], pick="order"), precision="float32")


def catch_errors(path: str) -> str:
    """Catch the errors of a load by their common base class."""
    kinds: tuple[type[weft.WeftError], ...] = (
        weft.ChangedFileError,
        weft.DeviceError,
        weft.DeviceFallbackError,
        weft.DeviceLostError,
        weft.ExecutionError,
        weft.GraphError,
        weft.InputError,
        weft.InternalError,
        weft.InvalidModelError,
        weft.KernelError,
        weft.MissingAttributeError,
        weft.OpDefinitionError,
        weft.MissingFileError,
        weft.MissingPackageError,
        weft.ModelError,
        weft.OpDefinitionError,
        weft.OutOfMemoryError,
        weft.RunCancelledError,
        weft.RunTimeoutError,
        weft.UnknownNameError,
        weft.UnknownOptionError,
        weft.UnsupportedModelError,
        weft.UntrustedModelError,
    )
    warnings: tuple[type[Warning], ...] = (weft.CacheWarning, weft.FallbackWarning)
    try:
        weft.load(path)
    except kinds as error:
        assert_type(error.hint, "str | None")
        return f"{error.problem} {weft.__version__} {warnings}"
    return ""
