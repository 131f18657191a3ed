"""Memory is predicted exactly before a run, and limits hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.cpu.memory import ARENA_OVERHEAD, Arenas
from weft.cache import code, entries, files
from weft.cli import main
from weft.runtime.memory import parse_bytes

SIDE = 256


def network(batch: int | str = 1) -> onnx.ModelProto:
    """Convolutions with a residual, and a product with large weights."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape, np.float32) * np.float32(0.1), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="rectify"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"], name="residual"),
        helper.make_node("Conv", ["d", "w3"], ["y"], name="third"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="mean"),
        helper.make_node("Flatten", ["e"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "w4"], ["z"], name="wide"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8, SIDE, SIDE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"],
        [
            weights("w1", 32, 8, 3, 3),
            weights("w2", 32, 32, 3, 3),
            weights("w3", 8, 32, 1, 1),
            weights("w4", 32, 60_000),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def data(batch: int = 1) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, 8, SIDE, SIDE), np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "package_digest", lambda: "this version")  # sources may be edited while tests run
    code.shared_cache.cache_clear()
    yield tmp_path
    code.shared_cache.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "network.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    path = tmp_path / "dynamic.onnx"
    onnx.save(network("batch"), path)
    return path


@pytest.mark.parametrize(
    ("text", "amount"),
    [(5, 5), ("200MB", 200_000_000), ("1.5 GiB", 1_610_612_736), ("64k", 64_000), ("7", 7), ("2 mib", 2 << 20)],
)
def test_amounts_of_memory(text: int | str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "MB", "-5", "1.5.2GB", "200 apples", True, 0])
def test_invalid_amounts_of_memory(text: int | str, file: Path) -> None:
    with pytest.raises(weft.InputError, match="memory_limit"):
        weft.load(file, memory_limit=text)


@pytest.fixture
def arena_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the bytes of the arenas that runs take, with their overhead."""
    arena_sizes: list[int] = []
    take = Arenas.take

    def note(self: Arenas, size: int, regions: int) -> object:
        arena = take(self, size, regions)
        arena_sizes.append(arena._memory.nbytes)
        return arena

    monkeypatch.setattr(Arenas, "take", note)
    return arena_sizes


def test_prediction_equals_allocation(dynamic: Path, arena_sizes: list[int]) -> None:
    model = weft.load(dynamic, device="cpu", threads=1)
    for batch in (1, 3):
        memory = model.memory({"batch": batch})
        assert memory == model.memory({"x": (batch, 8, SIDE, SIDE)})
        assert not arena_sizes
        outputs = model.run({"x": data(batch)})
        local = model.session().whole.workspace - ARENA_OVERHEAD  # of the thread
        assert arena_sizes == [memory.arena + memory.workspace - local]
        assert memory.arena <= arena_sizes.pop() <= 1.125 * memory.arena + ARENA_OVERHEAD
        assert memory.outputs == sum(array.nbytes for array in outputs.values())
        assert memory.peak == memory.weights + memory.arena + memory.workspace + memory.outputs
        assert memory.lower_bound <= memory.arena <= 1.01 * memory.lower_bound < memory.without_reuse
        arena_sizes.clear()


def test_arenas_of_limited_and_fixed_sizes_are_exact(dynamic: Path, file: Path, arena_sizes: list[int]) -> None:
    for path, limit in ((dynamic, "4GB"), (file, None)):
        model = weft.load(path, device="cpu", threads=1, memory_limit=limit)
        model.run({"x": data(1)})
        assert arena_sizes.pop() == model.memory().arena + ARENA_OVERHEAD
        assert model.memory().workspace == model.session().whole.workspace


def test_growing_sizes_share_arenas() -> None:
    arenas = Arenas()
    arenas.are_rounded = True
    allocated = set()
    for size in range(100_000, 200_000, 100):
        arena = arenas.take(size, 3)
        assert arena.size >= size
        allocated.add(arena.size)
        arenas.give(arena)
    assert len(allocated) <= 9


def test_arenas_are_at_most_an_eighth_larger() -> None:
    arenas = Arenas()
    assert [arenas.round(size) for size in range(100)] == list(range(100))
    arenas.are_rounded = True
    rounded = [arenas.round(size) for size in range(1 << 14)]
    assert all(size <= larger <= size * 1.125 for size, larger in enumerate(rounded))
    assert len(set(rounded)) <= 8 * 14
    assert rounded == sorted(rounded)


def test_guessed_sizes_are_reported(dynamic: Path) -> None:
    model = weft.load(dynamic, device="cpu")
    assert model.memory().guessed == ("batch",)
    assert model.memory().sizes == {"batch": 1}
    assert model.memory({"batch": 2}).guessed == ()
    assert model.memory({"batch": 2}).arena > 1.9 * model.memory().arena
    with pytest.raises(weft.InputError, match="no dynamic dim"):
        model.memory({"rows": 3})
    with pytest.raises(weft.InputError, match="does not fit"):
        model.memory({"x": (1, 9, SIDE, SIDE)})
    with pytest.raises(weft.InputError, match="no input"):
        model.memory({"y": (1, 9)})
    with pytest.raises(weft.DeviceError, match="has no memory plan"):
        weft.load(dynamic, device="reference").memory()


def test_memory_limit(file: Path) -> None:
    needed = weft.load(file, device="cpu").memory().peak
    assert weft.load(file, device="cpu", memory_limit=needed).run({"x": data()})
    with pytest.raises(weft.OutOfMemoryError, match=r"needs [\d,]+ bytes, more than the memory_limit") as refused:
        weft.load(file, device="cpu", memory_limit=needed // 2)
    assert "rectify" in str(refused.value)  # the node whose tensor makes the peak
    with pytest.raises(weft.OutOfMemoryError, match="the weights take"):
        weft.load(file, device="cpu", memory_limit="1MB")


def test_kernels_with_less_memory_are_used_under_a_limit(tmp_path: Path) -> None:
    """Convolutions whose fast kernel needs a large workspace."""
    rng = np.random.default_rng(2)
    weights = [numpy_helper.from_array(rng.standard_normal((64, 64, 3, 3), np.float32), name) for name in ("w1", "w2")]
    nodes = [
        helper.make_node("Conv", [source, weight], [result], pads=[1, 1, 1, 1])
        for source, weight, result in (("x", "w1", "a"), ("a", "w2", "b"))
    ]
    nodes.append(helper.make_node("Relu", ["b"], ["y"]))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64, 56, 56]) for name in "xy"]
    file = tmp_path / "convolutions.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:], weights), ir_version=8), file)
    fast, lean = (weft.load(file, device="cpu", precision=precision) for precision in ("float32", "strict"))
    assert lean.memory().peak < fast.memory().peak
    limited = weft.load(file, device="cpu", memory_limit=lean.memory().peak)
    assert limited.memory() == lean.memory()
    x = rng.standard_normal((1, 64, 56, 56), np.float32)
    np.testing.assert_array_equal(limited.run({"x": x})["y"], lean.run({"x": x})["y"])


def test_memory_limit_for_every_new_shape(dynamic: Path) -> None:
    free = weft.load(dynamic, device="cpu")
    model = weft.load(dynamic, device="cpu", memory_limit=free.memory({"batch": 2}).peak)
    expected = free.run({"x": data(2)})
    for _ in range(2):
        for name, array in model.run({"x": data(2)}).items():
            np.testing.assert_array_equal(array, expected[name])
        with pytest.raises(weft.OutOfMemoryError, match="memory_limit"):
            model.run({"x": data(3)})
    with pytest.raises(weft.DeviceError, match="does not support memory_limit"):
        weft.load(dynamic, device="reference", memory_limit="1GB")


def test_weights_of_a_file_are_shared(file: Path) -> None:
    one, other = weft.load(file, device="cpu"), weft.load(file, device="cpu", threads=1)
    assert one.session().whole.program is other.session().whole.program
    assert weft.load(file, device="cpu", precision="strict").session().whole.program is not one.session().whole.program


LIMITED = """
import resource, sys
import numpy as np
import weft, weft.loading
if len(sys.argv) == 4:
    import weft.backends.cpu.device, llvmlite.binding
path, more, limit = sys.argv[1], int(sys.argv[2]), sys.argv[3]
x = np.zeros((1, 8, 256, 256), np.float32)  # what is the caller's own
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))
try:
    model = weft.load(path, device="cpu", threads=1, memory_limit=limit or None)
    model.run({"x": x})
    print("ran")
except weft.OutOfMemoryError as error:
    print("refused", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.parametrize(("megabytes", "part"), [(1, 0.5), (20, 0.5), (60, 1.0), (80, 0.3), (96, 0.9), (96, 1.0)])
def test_little_address_space(file: Path, megabytes: int, part: float) -> None:
    """It runs or refuses, and never dies: also where the limit is more than there is.

    Beside what was planned, code, threads and Python itself take some of the `megabytes`.
    """
    needed = weft.load(file, device="cpu", threads=1).memory().peak
    for limit in (str(int(needed * part)), ""):
        done = run_python(LIMITED, str(file), str(int(needed * part) + (megabytes << 20)), limit)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("ran" if part >= 1 and megabytes == 96 else ("ran", "refused")), done.stdout
        assert not limit or part >= 1 or done.stdout.startswith("refused")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
def test_too_little_address_space_for_llvm(file: Path) -> None:
    done = run_python(LIMITED, str(file), str(20 << 20), "", "import nothing before")
    assert done.stdout.startswith("refused"), done.stderr


MEASURED = """
import sys
from pathlib import Path
from xml.etree import ElementTree
import numpy as np
import weft, weft.loading, weft.backends.cpu.device
def now(field):
    return next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith(field))
tiny, path = sys.argv[1:]
x = np.zeros((1, 8, 256, 256), np.float32)
weft.load(tiny, device="cpu", threads=1).run({"x": np.zeros((1, 8, 256, 256), np.float32)[:, :1, :2, :2]})
before = now("VmRSS")
model = weft.load(path, device="cpu", threads=1)
outputs = model.run({"x": x})
print(now("VmHWM") - before, model.memory().peak)
"""

ALLOWANCE = 6_000_000  # bytes of code, of Python objects for sections and plans, and of the allocator


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_resident_memory_is_predicted(file: Path, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.onnx"
    relu = helper.make_node("Relu", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 2, 2]) for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph([relu], "tiny", infos[:1], infos[1:]), ir_version=8), tiny)
    for path in (file, tiny):
        weft.load(path, device="cpu", threads=1)  # so that both are cached
    done = run_python(MEASURED, str(tiny), str(file))
    assert done.returncode == 0, done.stderr
    measured, predicted = map(int, done.stdout.split())
    assert predicted * 0.8 <= measured <= predicted * 1.1 + ALLOWANCE


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    prelude = "from weft.cache import entries; entries.package_digest = lambda: 'this version'\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", prelude + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


# -- the command -------------------------------------------------------------------------------------------------------


def test_weft_plan_prints(dynamic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(dynamic), "--verify"]) == 0
    text = capsys.readouterr().out
    for word in (
        "weights",
        "arena",
        "lower bound",
        "without reuse",
        "workspace",
        "peak",
        "batch = 1 (guessed; set them with --shape NAME=SIZE)",
        "verified",
    ):
        assert word in text
    assert "rectify" in text


def test_weft_plan_as_json(dynamic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [tmp_path / "map.svg", tmp_path / "map.png"]
    for picture in pictures:
        assert main(["plan", str(dynamic), "--shape", "batch=2", "--json", "-o", str(picture)]) == 0
        record = json.loads(capsys.readouterr().out)
    memory = weft.load(dynamic, device="cpu").memory({"batch": 2})
    assert record["weights_bytes"] == memory.weights
    assert record["arena_bytes"] == memory.arena
    assert record["lower_bound_bytes"] == memory.lower_bound
    assert record["sum_bytes"] == memory.without_reuse
    assert record["workspace_bytes"] == memory.workspace
    assert record["peak_bytes"] == memory.peak
    assert record["guessed"] == []
    assert max(one["offset"] + one["bytes"] for one in record["allocations"]) <= memory.arena
    assert sum(one["bytes"] for one in record["peak"]) <= memory.lower_bound
    check_svg(pictures[0], [one["nodes"].split(" + ")[-1] for one in record["allocations"]])
    check_png(pictures[1])


def check_svg(path: Path, nodes: list[str]) -> None:
    """Check that it is valid XML, and that the list has the node name of every tensor."""
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert nodes
    for node in nodes:
        assert any(text.startswith(node) for text in texts), node


def test_png_needs_pillow(
    dynamic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main(["plan", str(dynamic), "-o", str(tmp_path / "map.png")]) == 1
    assert "weft-onnx[image]" in capsys.readouterr().err
    assert main(["plan", str(dynamic), "-o", str(tmp_path / "map.svg")]) == 0


def check_png(path: Path) -> None:
    image = pytest.importorskip("PIL.Image").open(path)
    image.load()
    assert image.width == 1200
    assert image.height >= 640
    assert len(image.getcolors(1 << 20)) > 3


def test_weft_plan_refuses_invalid_arguments(dynamic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(dynamic), "-o", "map.gif"]) == 1
    assert main(["plan", str(dynamic), "--shape", "rows=2"]) == 1
    assert main(["plan", str(dynamic), "--device", "reference"]) == 1
    assert "has no memory plan" in capsys.readouterr().err
