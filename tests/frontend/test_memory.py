"""Reading a large model maps its weights instead of copying them into memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto, helper

MEASURE = """
import sys
from pathlib import Path
import numpy as np
from frontend import samples
from weft.frontend import read_model

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

read_model(samples.large_weights())
before = resident()
read = read_model(sys.argv[1])
grown = resident() - before
total = sum(array.nbytes for array in read.graph.initializers.values())
assert float(read.graph.initializers["w7"][-1, -1]) == 7.0
print(grown, total)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("raw", [True, False])
def test_reading_a_large_file_takes_little_memory(tmp_path: Path, raw: bool) -> None:
    shape = (1280, 1024)
    arrays = {f"w{index}": np.full(shape, index, np.float32) for index in range(20)}
    nodes = [node("Add", [f"v{index}", f"w{index}"], [f"v{index + 1}"]) for index in range(20)]
    weights = [
        tensor(name, array) if raw else helper.make_tensor(name, TensorProto.FLOAT, shape, array.reshape(-1))
        for name, array in arrays.items()
    ]
    path = tmp_path / "large.onnx"
    path.write_bytes(model(nodes, [value("v0", shape)], [value("v20", shape)], weights).SerializeToString())
    command = [sys.executable, "-c", MEASURE, str(path)]
    source, tests = Path(__file__).parents[2] / "src", Path(__file__).parents[1]
    result = subprocess.run(
        command, env={"PYTHONPATH": f"{source}:{tests}"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    grown, total = map(int, result.stdout.split())
    assert total > 100_000_000
    assert grown < 20_000_000, f"{grown} bytes for {total} of weights"
