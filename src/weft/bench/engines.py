"""How each engine loads an ONNX file and runs it in float32 on a given number of threads.

Other engines are optional: their modules are imported by name when a model is loaded, and never otherwise. Every
engine loads the file as it is, and gives results that belong to the caller. wonnx takes hardly any file as it is:
scripts/bench can put models into a form that it takes, and gives that to all.
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
    """What is loaded, and how; `device`, `precision` and what is `further` said are for weft alone."""

    path: str
    device: str
    threads: int
    precision: str = "float32"
    further: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in some engine. Only `run` is timed."""

    model: Any
    prepare: Callable[[Mapping[str, Any]], Any]
    run: Callable[[Any], Any]
    arrays: Callable[[Any], list[Any]]  # a run's result as outputs in the model's order


@dataclass(frozen=True, slots=True)
class Ran:
    """What the first runs gave: the outputs, the seconds of the very first one, and the most memory since importing.

    Before that came the seconds of importing the engine.
    """

    outputs: list[Any]
    first_seconds: float
    memory: int | None
    import_seconds: float


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    packages: tuple[str, ...]  # for pip; the first one's version is the engine's
    modules: tuple[str, ...]  # imported before anything is measured
    load: Callable[[Setup], Loaded]
    environment: Mapping[str, str]  # of the process; {threads} and {cache} stand for the number and the folder

    @property
    def missing(self) -> str | None:
        """What is not installed and how to get it, or None."""
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


def _as_they_are(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(inputs)


def _load_weft(setup: Setup) -> Loaded:
    from weft.loading import load

    options: dict[str, Any] = {"precision": setup.precision, **setup.further}
    model = load(setup.path, device=setup.device, threads=setup.threads, **options)
    return Loaded(model, _as_they_are, model.run, lambda result: list(result.values()))


def _load_onnxruntime(setup: Setup) -> Loaded:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setup.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(setup.path, options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, Any]) -> Any:
        return session.run(None, inputs)

    return Loaded(session, _as_they_are, run, list)


def _load_openvino(setup: Setup) -> Loaded:
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
        """By position: inputs that the model does not need may have gone."""
        names = [port.get_names() for port in model.inputs]
        return {number: inputs[name] for number, found in enumerate(names) for name in found if name in inputs}

    def run(inputs: dict[int, Any]) -> Any:
        return request.infer(inputs, share_inputs=True, share_outputs=False)

    return Loaded(model, prepare, run, lambda result: list(result.to_tuple()))


def _load_torch(setup: Setup) -> Loaded:
    torch, onnx2torch = import_module("torch"), import_module("onnx2torch")
    torch.set_num_threads(setup.threads)
    model = onnx2torch.convert(setup.path).eval()
    names = [node.name for node in model.graph.nodes if node.op == "placeholder"]

    def prepare(inputs: Mapping[str, Any]) -> list[Any]:
        """The graph's inputs in its order, which is the file's; the names are changed to be Python's."""
        return [torch.from_numpy(array) for _, array in zip(names, inputs.values(), strict=True)]

    def run(inputs: list[Any]) -> Any:
        with torch.inference_mode():
            return model(*inputs)

    return Loaded(model, prepare, run, lambda result: [tensor.numpy() for tensor in _several(result)])


def _load_tinygrad(setup: Setup) -> Loaded:
    tinygrad, onnx = import_module("tinygrad"), import_module("tinygrad.nn.onnx")
    model = onnx.OnnxRunner(setup.path)
    step = tinygrad.TinyJit(lambda **inputs: tuple(tensor.realize() for tensor in model(inputs).values()))

    def prepare(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tinygrad.Tensor(array).realize() for name, array in inputs.items()}

    def run(inputs: dict[str, Any]) -> Any:
        return [tensor.numpy() for tensor in step(**inputs)]

    return Loaded(model, prepare, run, list)


def _load_wonnx(setup: Setup) -> Loaded:
    """On the adapter that it picks by itself. Numbers go in and come out as lists; `run` has to convert them."""
    wonnx = import_module("wonnx")
    session = _without_panic(lambda: wonnx.Session.from_path(setup.path))

    def prepare(inputs: Mapping[str, Any]) -> dict[str, list[float]]:
        return {name: array.ravel().tolist() for name, array in inputs.items()}

    def run(inputs: dict[str, list[float]]) -> Any:
        return _without_panic(lambda: session.run(inputs))

    return Loaded(session, prepare, run, lambda result: _shaped(setup.path, result))


def _without_panic(call: Callable[[], Any]) -> Any:
    """Code in Rust that gives up raises what is no Exception, and would end the process."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise ExecutionError(" ".join(str(error).split())) from None
        raise


def _shaped(path: str, result: Mapping[str, Any]) -> list[Any]:
    """Lists of numbers by name as arrays, in the order and the shapes that the file has for its outputs."""
    onnx, numpy = import_module("onnx"), import_module("numpy")
    outputs = onnx.load(path, load_external_data=False).graph.output
    shapes = {output.name: [dim.dim_value for dim in output.type.tensor_type.shape.dim] for output in outputs}
    return [numpy.array(result[name], numpy.float32).reshape(shape) for name, shape in shapes.items()]


def _several(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (list, tuple)) else [result]


WEFT = Engine("weft", ("weft",), ("weft.loading",), _load_weft, {})
JUDGE = Engine("onnxruntime", ("onnxruntime",), ("onnxruntime",), _load_onnxruntime, {})
"""The engine whose outputs all others are compared with."""

PEERS = {
    engine.name: engine
    for engine in (
        JUDGE,
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
