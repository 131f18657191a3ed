"""Test docs/guides/builder.md with its samples; `WEFT_WRITE_DOCS=1 pytest tests/builder/test_page.py` writes it."""

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

INTRODUCTION = f"""# Build a model in Python

`weft.Graph` builds a model without an ONNX file:

```python
{FIRST}```

**Ops.** Every op that weft defines is a function in `weft.ops`:

- Inputs are positional (or by name), attributes are keywords. The result is a tensor, or a tuple of tensors.
- Names are ONNX's in snake case: `Conv` is `conv`, `MatMul` is `mat_mul`, `And` is `and_`.
- Other domains are modules (`weft.ops.microsoft.fused_mat_mul`, `weft.ops.ml.tree_ensemble`). Ops that you define with
  `@op` are in `weft.ops.domain("com.acme")`.
- `outputs=` requests optional outputs: `y, mean, deviation = weft.ops.layer_normalization(x, scale, outputs=3)`.
- `name="conv1"` names a node and its output, so that you can request the output when you load the model.
- Signatures come from the definitions: editors complete them, and mypy checks them.

**Arrays and numbers** become constants. They take the dtype of the other operands where the op needs the same type;
otherwise a Python float is a float32 and an int an int64. A value that the dtype cannot represent is an error.
Functions without tensors among their inputs add their node to the graph of the enclosing `with graph:` statement.

**Tensors** have Python's operators and numpy's indexing, and `shape`, `dtype`, `ndim`, `T`, `astype`, `reshape`,
`transpose`, `squeeze`, `sum`, `mean`, `max`, `min`, `prod`. All follow numpy: slices, the signs of `//` and `%`, sums
and products of integers in 64 bits. There are three differences: the mean of integers is a float32 (numpy: float64),
`/` does not divide integers, and operands of different types are an error. Dynamic sizes are symbols: they print by
name, support arithmetic (`batch * heads`, `time // 2`), and can be used wherever a size or a number is expected.

**Errors** name the line of the call: each call runs the op's definition on symbolic tensors, which infers the shape and
dtype of the result, or raises the error.

```text
model.py:9: MatMul(a: float32[batch, 4], b: float32[5, 3]): sizes 4 and 5 differ: both tensors of a product …
```

**Control flow** takes Python functions as bodies, which may use tensors of the enclosing graph:

- `weft.ops.if_(condition, then, otherwise)` runs one of two functions without arguments;
- `weft.ops.loop(trip_count, condition, states, body)` runs `body(iteration, *states)`, which returns whether to
  continue (None: yes), the next states, and tensors to collect; states may change their shape between iterations;
- `weft.ops.scan(states, sequences, body)` runs `body(*states, *slices)` along the first axis of the sequences;
- `weft.ops.sequence_map(sequence, body=body)` runs it for each element.

A body is called when the graph is built, and again if a state changes its shape.

The opset is 23, the newest that onnxruntime reads on every Python version that weft supports; `weft.Graph(opset=26)`
selects another one.
"""

SAMPLES = {
    "resnet_block": "A ResNet block",
    "transformer_layer": "A transformer layer",
    "lstm": "An LSTM",
    "greedy_decoding": "A loop that ends by a condition on data",
}


def page() -> str:
    """Return the page as Markdown."""
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
    names = runpy.run_path(str(program))
    assert str(names["y"].shape) == "(batch, 3)"
    result = names["model"].run({"x": np.ones((2, 4), np.float32)})["y"]
    np.testing.assert_allclose(result.sum(axis=1), 1, rtol=1e-6)
