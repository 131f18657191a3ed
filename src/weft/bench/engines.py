"""How each engine loads an ONNX file and runs it in float32 on a number of threads.

Other engines are optional: their modules are imported by name when a model is loaded. Every engine loads the unchanged
file and returns results that the caller owns. wonnx runs hardly any unchanged file: scripts/bench can convert models
to a form that it supports, for all engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from weft.errors import ExecutionError
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Setup:
    """What to load, and how; `device`, `precision` and `load_options` are for weft only."""

    path: str
    device: str
    threads: int
    precision: str = "float32"
    load_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in an engine. Only `run` is timed."""

    model: Any
    prepare: Callable[[Mapping[str, Any]], Any]
    run: Callable[[Any], Any]
    arrays: Callable[[Any], list[Any]]  # converts a result to the outputs in the model's order


@dataclass(frozen=True, slots=True)
class FirstRuns:
    """Outputs, seconds of the first run and of importing the engine, and the peak memory since the import."""

    outputs: list[Any]
    first_seconds: float
    memory: int | None
    import_seconds: float


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    packages: tuple[str, ...]  # for pip; the first has the version of the engine
    modules: tuple[str, ...]  # imported before measuring
    load: Callable[[Setup], LoadedModel]
    environment: Mapping[str, str]  # variables of the process; {threads} and {cache} are replaced

    @property
    def missing(self) -> str | None:
        """Which packages are missing and how to install them; None if none."""
        roots = dict.fromkeys(module.partition(".")[0] for module in self.modules)
        absent = [root for root in roots if find_spec(root) is None]
        if not absent:
            return None
        return f"{' and '.join(absent)} not installed: pip install {' '.join(self.packages)}"

    @property
    def version(self) -> str:
        try:
            return version(self.packages[0])
        except PackageNotFoundError:
            return str(getattr(import_module(self.modules[0].partition(".")[0]), "__version__", "unknown"))


def _load_weft(setup: Setup) -> LoadedModel:
    from weft.loading import load

    options: dict[str, Any] = {"precision": setup.precision, **setup.load_options}
    model = load(setup.path, device=setup.device, threads=setup.threads, **options)
    return LoadedModel(model, dict, model.run, lambda result: list(result.values()))


def _load_onnxruntime(setup: Setup) -> LoadedModel:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setup.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(setup.path, options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, Any]) -> Any:
        return session.run(None, inputs)

    return LoadedModel(session, dict, run, list)


def _load_openvino(setup: Setup) -> LoadedModel:
    openvino = import_module("openvino")
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": setup.threads,
    }
    core = openvino.Core()
    model = core.compile_model(core.read_model(setup.path), "CPU", options)
    request = model.create_infer_request()

    def prepare(inputs: Mapping[str, Any]) -> dict[int, Any]:
        """Return the inputs by position, since OpenVINO removes unused ones."""
        names = [port.get_names() for port in model.inputs]
        return {number: inputs[name] for number, aliases in enumerate(names) for name in aliases if name in inputs}

    def run(inputs: dict[int, Any]) -> Any:
        return request.infer(inputs, share_inputs=True, share_outputs=False)

    return LoadedModel(model, prepare, run, lambda result: list(result.to_tuple()))


def _load_torch(setup: Setup) -> LoadedModel:
    torch, onnx2torch = import_module("torch"), import_module("onnx2torch")
    torch.set_num_threads(setup.threads)
    model = onnx2torch.convert(setup.path).eval()
    names = [node.name for node in model.graph.nodes if node.op == "placeholder"]

    def prepare(inputs: Mapping[str, Any]) -> list[Any]:
        """Return the inputs in the order of the file, since onnx2torch renames them."""
        return [torch.from_numpy(array) for _, array in zip(names, inputs.values(), strict=True)]

    def run(inputs: list[Any]) -> Any:
        with torch.inference_mode():
            return model(*inputs)

    return LoadedModel(model, prepare, run, lambda result: [tensor.numpy() for tensor in _as_sequence(result)])


def _load_tinygrad(setup: Setup) -> LoadedModel:
    tinygrad, onnx = import_module("tinygrad"), import_module("tinygrad.nn.onnx")
    model = onnx.OnnxRunner(setup.path)
    step = tinygrad.TinyJit(lambda **inputs: tuple(tensor.realize() for tensor in model(inputs).values()))

    def prepare(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tinygrad.Tensor(array).realize() for name, array in inputs.items()}

    def run(inputs: dict[str, Any]) -> Any:
        return [tensor.numpy() for tensor in step(**inputs)]

    return LoadedModel(model, prepare, run, list)


def _load_wonnx(setup: Setup) -> LoadedModel:
    """Load on the adapter that wonnx picks; it takes and returns lists, which `run` has to convert."""
    wonnx = import_module("wonnx")
    session = _catch_panic(lambda: wonnx.Session.from_path(setup.path))

    def prepare(inputs: Mapping[str, Any]) -> dict[str, list[float]]:
        return {name: array.ravel().tolist() for name, array in inputs.items()}

    def run(inputs: dict[str, list[float]]) -> Any:
        return _catch_panic(lambda: session.run(inputs))

    return LoadedModel(session, prepare, run, lambda result: _reshape_outputs(setup.path, result))


def _catch_panic(call: Callable[[], Any]) -> Any:
    """Turn a panic of Rust code, which is not an Exception, into an error."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise ExecutionError(" ".join(str(error).split())) from None
        raise


def _reshape_outputs(path: str, result: Mapping[str, Any]) -> list[Any]:
    """Convert lists to arrays, in the order and shapes of the file's outputs."""
    onnx, numpy = import_module("onnx"), import_module("numpy")
    outputs = onnx.load(path, load_external_data=False).graph.output
    shapes = {output.name: [dim.dim_value for dim in output.type.tensor_type.shape.dim] for output in outputs}
    return [numpy.array(result[name], numpy.float32).reshape(shape) for name, shape in shapes.items()]


def _as_sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (list, tuple)) else [result]


WEFT = Engine("weft", ("weft",), ("weft.loading",), _load_weft, {})
REFERENCE = Engine("onnxruntime", ("onnxruntime",), ("onnxruntime",), _load_onnxruntime, {})
"""The engine that the outputs of all others are compared with."""

PEERS = {
    engine.name: engine
    for engine in (
        REFERENCE,
        Engine("openvino", ("openvino",), ("openvino",), _load_openvino, {}),
        Engine("torch", ("torch", "onnx2torch"), ("torch", "onnx2torch"), _load_torch, {}),
        Engine(
            "tinygrad",
            ("tinygrad",),
            ("tinygrad", "tinygrad.nn.onnx"),
            _load_tinygrad,
            {"DEV": "CPU", "NUM_CPU_THREADS": "{threads}", "CPU_COUNT": "{threads}", "CACHEDB": "{cache}/code.db"},
        ),
        Engine("wonnx", ("wonnx",), ("wonnx",), _load_wonnx, {}),
    )
}
