"""docs/guides/builder.md shows the sample programs; `WEFT_WRITE_DOCS=1 pytest tests/builder/test_page.py` writes it."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "guides" / "builder.md"

FIRST = """import numpy as np

import weft

random = np.random.default_rng(0)
graph = weft.Graph("dense")
x = graph.input("x", ("batch", 4), "float32")
w = graph.parameter("w", random.normal(size=(4, 3)).astype(np.float32))
y = weft.ops.softmax(x @ w + [0.5, 0.0, -0.5])
print(y.shape, y.dtype)  # (batch, 3) float32
graph.output(y, "y")

model = graph.compile(device="cpu")  # a weft.Model; takes what weft.load takes
print(model.run({"x": np.ones((2, 4), np.float32)})["y"])
proto = graph.to_onnx()  # an onnx.ModelProto; graph.to_onnx("dense.onnx") writes a file
"""

INTRODUCTION = f"""# Models without a file

A `weft.Graph` is a model that is written in Python:

```python
{FIRST}```

**Ops.** Every op that weft defines is a function in `weft.ops`: inputs are positional (or by name), attributes are
keywords, and the result is a tensor, or a tuple of them. Names are ONNX's in Python's spelling: `Conv` is `conv`,
`MatMul` is `mat_mul`, `And` is `and_`. Other domains have modules of their own (`weft.ops.microsoft.fused_mat_mul`,
`weft.ops.ml.tree_ensemble`), and ops that you define with `@op` are in `weft.ops.domain("com.acme")`. Outputs that a
node may leave out are given to those who ask: `y, mean, deviation = weft.ops.layer_normalization(x, scale, outputs=3)`.
Signatures come from the definitions, editors complete them, and mypy checks them. `name="conv1"` names a node and its
result, so that it can be asked for later.

**Arrays and numbers** become constants. They take the dtype of the tensor that the op wants to be of the same type, or
else a Python float is a float32 and an int an int64; what such a dtype cannot hold is an error. Functions that have no
tensor among their inputs belong to the graph of a `with graph:` statement.

**Tensors** have Python's operators and numpy's indexing, and `shape`, `dtype`, `ndim`, `T`, `astype`, `reshape`,
`transpose`, `squeeze`, `sum`, `mean`, `max`, `min`, `prod`. They mean what they mean in numpy: slices, the signs of
`//` and `%`, sums and products of integers in 64 bits. Three differences keep the types of a graph in your hands: the
mean of integers is a float32 (numpy: float64), `/` does not divide integers, and operands of different types are an
error. Sizes that only a run knows are symbols: they print by their name, can be computed with (`batch * heads`,
`time // 2`) and used wherever a size or a number is expected.

**Errors** come at the line that makes them: each call runs the op's one definition on symbolic tensors, which tells the
result's shape and dtype, or what does not fit.

```text
model.py:9: MatMul(a: float32[batch, 4], b: float32[5, 3]): sizes 4 and 5 differ: both tensors of a product …
```

**Control flow** takes Python functions as bodies, which may use tensors from outside of them:

- `weft.ops.if_(condition, then, otherwise)` runs one of two functions without arguments;
- `weft.ops.loop(trip_count, condition, states, body)` runs `body(iteration, *states)`, which returns whether to go on
  (None: yes), the next states, and tensors to collect; states may change their shape from one step to the next;
- `weft.ops.scan(states, sequences, body)` runs `body(*states, *slices)` along the first axis of the sequences;
- `weft.ops.sequence_map(sequence, body=body)` runs it for each element.

A body is called when the graph is built, and once more if a state turns out to change its shape.

The opset is 23, the newest that onnxruntime reads on every Python that weft is for; `weft.Graph(opset=26)` takes
another one.
"""

SAMPLES = {
    "resnet_block": "A block of a ResNet",
    "transformer_layer": "A layer of a transformer",
    "lstm": "An LSTM",
    "greedy_decoding": "A loop with an end that the data decides",
}


def page() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION]
    for name, title in SAMPLES.items():
        code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        parts.append(f"## {title}\n\n`examples/{name}.py`:\n\n```python\n{code}```\n")
    return "\n".join(parts)


def test_the_page_shows_the_samples() -> None:
    if os.environ.get("WEFT_WRITE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), "run WEFT_WRITE_DOCS=1 pytest tests/builder/test_page.py"


def test_the_first_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "first.py"
    program.write_text(FIRST, encoding="utf-8")
    ran = runpy.run_path(str(program))
    assert str(ran["y"].shape) == "(batch, 3)"
    result = ran["model"].run({"x": np.ones((2, 4), np.float32)})["y"]
    np.testing.assert_allclose(result.sum(axis=1), 1, rtol=1e-6)
