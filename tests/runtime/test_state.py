"""`model.state()`: what a model remembers between runs, extended in place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model as make_model
from frontend.samples import node, tensor, value
from models.decoders import DECODERS as EXPORTED
from models.decoders import build_decoder, decoder_inputs
from peers import onnxruntime_run
from runtime.state_models import (
    HEADS,
    PAST,
    SHARED,
    SIZE,
    WORDS,
    concat_decoder,
    grouped_decoder,
    merged_decoder,
    recurrent_model,
)
from runtime.test_decoders import LENGTHS, SMALL, generate, small_form

import weft
from weft.cache import entries, files
from weft.runtime.state_pairs import list_output_names

DEVICES = pytest.mark.parametrize("device", ["cpu", "webgpu:0"])
DECODERS = pytest.mark.parametrize("build", [concat_decoder, grouped_decoder, merged_decoder])
Feeds = dict[str, np.ndarray]


def feeds(length: int, new: int, batch: int = 1, *, merged: bool = False, seed: int = 0) -> Feeds:
    """Make the inputs of a run that adds new tokens after `length` ones."""
    ids = np.random.default_rng((seed, length)).integers(0, WORDS, (batch, new))
    inputs = {"input_ids": ids, "attention_mask": np.ones((batch, length + new), np.int64)}
    return {**inputs, "use_cache_branch": np.array([length > 0])} if merged else inputs


def empty_past(loaded: weft.Model, batch: int = 1) -> Feeds:
    names = [spec.name for spec in loaded.inputs if spec.name.startswith("past")]
    heads = int(loaded.inputs[names[0]].shape[1])  # type: ignore[index]
    return {name: np.zeros((batch, heads, 0, SIZE), np.float32) for name in names}


def decode(
    run: Callable[[Feeds], dict[str, Any]], past: Feeds, counts: list[int], batch: int = 1, *, merged: bool = False
) -> tuple[list[np.ndarray], Feeds]:
    """Run with the cache passed by hand; return logits and the last cache."""
    length, logits = 0, []
    for new in counts:
        results = run({**feeds(length, new, batch, merged=merged), **past})
        past = {name: results[name.replace("past_key_values", "present")] for name in past}
        logits.append(results["logits"])
        length += new
    return logits, past


def is_merged(loaded: weft.Model) -> bool:
    return "use_cache_branch" in [spec.name for spec in loaded.inputs]


def advance(loaded: weft.Model, state: weft.State, new: int, batch: int = 1, **options: Any) -> dict[str, Any]:
    return loaded.run(feeds(state.length, new, batch, merged=is_merged(loaded)), state=state, **options)


@DEVICES
@DECODERS
@pytest.mark.parametrize("batch", [1, 3])
def test_a_state_gives_the_bits_of_a_cache_passed_by_hand(
    build: Callable[[], onnx.ModelProto], device: str, batch: int
) -> None:
    loaded = weft.load(build(), device=device)
    counts = [5, 1, 1, 3, 1]
    merged = build is merged_decoder
    expected, past = decode(loaded.run, empty_past(loaded, batch), counts, batch, merged=merged)
    state = loaded.state(capacity={PAST: 24})
    for new, logits in zip(counts, expected):
        results = advance(loaded, state, new, batch)
        assert list(results) == ["logits"]
        np.testing.assert_array_equal(results["logits"], logits)
    assert state.length == sum(counts)
    contents = state.numpy()
    assert contents.keys() == past.keys()
    for name, array in past.items():
        np.testing.assert_array_equal(contents[name], array)


@DECODERS
def test_a_state_agrees_with_onnxruntime(build: Callable[[], onnx.ModelProto]) -> None:
    built = build()
    loaded = weft.load(built)
    names = [output.name for output in built.graph.output]
    counts = [4, 1, 2, 1]
    merged = build is merged_decoder
    expected, _ = decode(
        lambda inputs: dict(zip(names, onnxruntime_run(built, inputs))), empty_past(loaded), counts, merged=merged
    )
    state = loaded.state(capacity=16)
    for new, logits in zip(counts, expected):
        np.testing.assert_allclose(advance(loaded, state, new)["logits"], logits, rtol=1e-4, atol=1e-4)


@DECODERS
def test_no_kernel_copies_the_cache(build: Callable[[], onnx.ModelProto]) -> None:
    loaded = weft.load(build())
    state = loaded.state(capacity={PAST: 64})
    advance(loaded, state, 3)
    memory = addresses(state)
    advance(loaded, state, 1)
    assert addresses(state) == memory
    compiled = stateful_program(loaded, state)
    assert len(compiled.state.inputs) == 4
    assert not compiled.state.carried
    sections = [part for section in compiled.sections for part in (section, *sum(getattr(section, "bodies", ()), ()))]
    templates = [task.template for section in sections for task in getattr(section, "tasks", ())]
    assert templates.count("scatter") == 4 * (1 + is_merged(loaded))
    assert "concat" not in templates
    assert "streaming attention" in templates


def stateful_program(loaded: weft.Model, state: weft.State) -> Any:
    executable = loaded.session().stateful_program(tuple(state._pairs.values()), ("logits",), ())
    assert executable is not None
    return executable.program


def addresses(state: weft.State) -> dict[str, int]:
    return {name: content.ctypes.data for name, content in state._contents.items() if isinstance(content, np.ndarray)}


@DEVICES
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_forms_have_the_bits_of_a_cache_passed_by_hand(name: str, device: str, tmp_path: Path) -> None:
    loaded = weft.load(build_decoder(name, small_form(name), tmp_path), device=device)
    expected = generate(name, loaded)
    state = loaded.state(capacity=24)
    random = np.random.default_rng(0)
    for length, logits in zip(LENGTHS, expected):
        tokens = random.integers(0, SMALL.vocabulary, (1, length))
        results = loaded.run(decoder_inputs(name, tokens, state.length), state=state)
        np.testing.assert_array_equal(results["logits"], logits)
    assert not stateful_program(loaded, state).state.carried


def test_many_lengths_give_the_same_bits() -> None:
    loaded = weft.load(concat_decoder(1))
    counts = [3] + [1] * 80
    expected, _ = decode(loaded.run, empty_past(loaded), counts)
    state = loaded.state(capacity=100)
    for new, logits in zip(counts, expected):
        np.testing.assert_array_equal(advance(loaded, state, new)["logits"], logits)


@DEVICES
@DECODERS
def test_truncate_forgets_the_last_tokens(build: Callable[[], onnx.ModelProto], device: str) -> None:
    loaded = weft.load(build(), device=device)
    state = loaded.state(capacity=16)
    for new in (4, 1):
        advance(loaded, state, new)
    again = advance(loaded, state, 1)["logits"]
    advance(loaded, state, 2)
    state.truncate(5)
    assert state.length == 5
    np.testing.assert_array_equal(advance(loaded, state, 1)["logits"], again)
    state.truncate(0)
    assert state.length == 0
    advance(loaded, state, 4, batch=2)
    with pytest.raises(weft.InputError, match="a state of length 4 cannot be truncated to 5"):
        state.truncate(5)
    with pytest.raises(weft.InputError, match="length must be a whole number from 0 on, not -1"):
        state.truncate(-1)


@DEVICES
def test_a_copy_continues_alone(device: str) -> None:
    loaded = weft.load(grouped_decoder(), device=device)
    state = loaded.state(capacity=12)
    advance(loaded, state, 4)
    other = state.copy()
    first = advance(loaded, state, 1)["logits"]
    advance(loaded, state, 1)
    assert (state.length, other.length) == (6, 4)
    np.testing.assert_array_equal(advance(loaded, other, 1)["logits"], first)


@DEVICES
@DECODERS
def test_a_state_is_filled_with_the_outputs_of_a_run(build: Callable[[], onnx.ModelProto], device: str) -> None:
    loaded = weft.load(build(), device=device)
    state = loaded.state(capacity=12)
    advance(loaded, state, 4)
    other = loaded.state(capacity=20)
    advance(loaded, other, 2)  # what is replaced
    other.fill(state.numpy())
    assert other.length == 4
    np.testing.assert_array_equal(advance(loaded, other, 1)["logits"], advance(loaded, state, 1)["logits"])


def test_a_content_that_does_not_fit_is_refused() -> None:
    loaded = weft.load(concat_decoder())
    state = loaded.state(capacity=4)
    contents = empty_past(loaded)
    first = next(iter(contents))
    with pytest.raises(weft.InputError, match="holds"):
        state.fill({first: contents[first]})
    with pytest.raises(weft.InputError, match="new content"):
        state.fill({**contents, first: contents[first].astype(np.float64)})
    longer = {name: np.zeros((*array.shape[:2], 5, SIZE), np.float32) for name, array in contents.items()}
    with pytest.raises(weft.InputError, match="full"):
        state.fill(longer)
    assert state.length == 0


@DEVICES
@DECODERS
def test_a_saved_state_continues_in_another_model(
    build: Callable[[], onnx.ModelProto], device: str, tmp_path: Path
) -> None:
    loaded = weft.load(build(), device=device)
    state = loaded.state(capacity=12)
    for new in (4, 1):
        advance(loaded, state, new)
    state.save(tmp_path / "chat.state")
    expected = advance(loaded, state, 1)["logits"]
    other = weft.load(build(), device=device)
    restored = other.state(capacity=20)
    restored.load(tmp_path / "chat.state")
    assert restored.length == 5
    np.testing.assert_array_equal(advance(other, restored, 1)["logits"], expected)
    assert [path.name for path in tmp_path.iterdir()] == ["chat.state"]


def test_files_that_are_no_states_are_refused(tmp_path: Path) -> None:
    loaded = weft.load(concat_decoder(1))
    state = loaded.state(capacity=12)
    with pytest.raises(weft.InputError, match="cannot be read"):
        state.load(tmp_path / "missing")
    (tmp_path / "text").write_text("no state")
    with pytest.raises(weft.InputError, match="is not a file of a state"):
        state.load(tmp_path / "text")
    np.savez(tmp_path / "other.npz", about=np.frombuffer(b"{}", np.uint8))
    with pytest.raises(weft.InputError, match="is not a file of a state: its format is None"):
        state.load(tmp_path / "other.npz")
    two = weft.load(concat_decoder(2))
    other = two.state(capacity=12)
    advance(two, other, 3)
    other.save(tmp_path / "two.state")
    with pytest.raises(weft.InputError, match="has the state of another model"):
        state.load(tmp_path / "two.state")
    small = two.state(capacity=2)
    with pytest.raises(weft.InputError, match="the state is full"):
        small.load(tmp_path / "two.state")
    assert small.length == 0
    with pytest.raises(weft.InputError, match="cannot be saved to"):
        state.save(tmp_path / "no" / "folder")


@DEVICES
@DECODERS
def test_a_full_state_is_an_error_before_anything_runs(build: Callable[[], onnx.ModelProto], device: str) -> None:
    loaded = weft.load(build(), device=device)
    state = loaded.state(capacity={PAST: 6})
    advance(loaded, state, 4)
    before = state.numpy()
    with pytest.raises(weft.InputError, match=f"it holds 4 of 6 along '{PAST}', and this run needs 7"):
        advance(loaded, state, 3)
    assert state.length == 4
    for name, array in state.numpy().items():
        np.testing.assert_array_equal(array, before[name])
    advance(loaded, state, 2)
    assert state.length == 6


@DEVICES
@DECODERS
def test_a_failed_run_leaves_the_state(build: Callable[[], onnx.ModelProto], device: str) -> None:
    loaded = weft.load(build(), device=device)
    state = loaded.state(capacity=12)
    advance(loaded, state, 4)
    before = state.numpy()
    wrong = feeds(4, 1, merged=is_merged(loaded))
    wrong["input_ids"] = np.array([[WORDS + 7]])
    with pytest.raises(weft.WeftError):
        loaded.run(wrong, state=state)
    assert state.length == 4
    for name, array in state.numpy().items():
        np.testing.assert_array_equal(array, before[name])
    expected = loaded.state(capacity=12)
    advance(loaded, expected, 4)
    np.testing.assert_array_equal(advance(loaded, state, 1)["logits"], advance(loaded, expected, 1)["logits"])


def test_a_cancelled_run_leaves_the_state() -> None:
    loaded = weft.load(concat_decoder())
    state = loaded.state(capacity=12)
    advance(loaded, state, 4)
    cancel = weft.Cancellation()
    cancel.cancel()
    with pytest.raises(weft.RunCancelledError):
        advance(loaded, state, 1, cancel=cancel)
    assert state.length == 4
    advance(loaded, state, 1, timeout=60.0)
    assert state.length == 5


def test_a_mask_of_another_length_names_the_shapes() -> None:
    loaded = weft.load(concat_decoder())
    state = loaded.state(capacity=12)
    advance(loaded, state, 4)
    wrong = {**feeds(4, 1), "attention_mask": np.ones((1, 3), np.int64)}
    with pytest.raises(weft.InputError, match=r"attention_mask: \[1, 3\]"):
        loaded.run(wrong, state=state)
    assert state.length == 4


def test_padding_on_the_right_as_in_batches_of_prompts() -> None:
    """Shorter sequences of a batch write their tokens in the middle of the buffer."""
    loaded = weft.load(grouped_decoder())
    prompts = np.random.default_rng(4).integers(0, WORDS, (2, 5))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    state = loaded.state(capacity=10)
    past = empty_past(loaded, 2)
    for step in range(4):
        inputs = {"input_ids": prompts if not step else prompts[:, step : step + 1], "attention_mask": mask}
        results = loaded.run({**inputs, **past})
        np.testing.assert_array_equal(loaded.run(inputs, state=state)["logits"], results["logits"])
        past = {name: results[name.replace("past_key_values", "present")] for name in past}
        ends = mask.sum(axis=1)
        mask = np.concatenate([mask, np.zeros((2, 1), np.int64)], axis=1)
        mask[[0, 1], ends] = 1


@DEVICES
def test_outputs_of_the_state_are_returned_if_named(device: str) -> None:
    loaded = weft.load(concat_decoder(), device=device)
    state = loaded.state(capacity=12)
    results = advance(loaded, state, 3, outputs=["present.1.value", "logits"])
    assert list(results) == ["present.1.value", "logits"]
    assert results["present.1.value"].shape == (1, HEADS, 3, SIZE)
    np.testing.assert_array_equal(results["present.1.value"], state.numpy()["past_key_values.1.value"])
    logits = advance(loaded, state, 1, keep=True)["logits"]
    assert isinstance(logits, weft.DeviceTensor)
    inner = advance(loaded, state, 1, outputs=["x1"])
    assert inner["x1"].shape == (1, 1, HEADS * SIZE)
    assert state.length == 5


def test_into_and_async_runs() -> None:
    loaded = weft.load(concat_decoder())
    state, other = loaded.state(capacity=12), loaded.state(capacity=12)
    logits = np.empty((1, 3, WORDS), np.float32)
    assert advance(loaded, state, 3, into={"logits": logits})["logits"] is logits
    results = asyncio.run(loaded.run_async(feeds(0, 3), state=other))
    np.testing.assert_array_equal(results["logits"], logits)
    assert state.length == other.length == 3


def test_threads_wait_for_each_other() -> None:
    loaded = weft.load(recurrent_model())
    state = loaded.state()
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 1, 5)).astype(np.float32)}
    threads = [threading.Thread(target=loaded.run, args=(inputs,), kwargs={"state": state}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hidden = np.zeros((1, 1, 8), np.float32)
    for _ in threads:
        hidden = loaded.run({**inputs, "h": hidden})["hn"]
    np.testing.assert_array_equal(state.numpy()["h"], hidden)


@DEVICES
def test_a_recurrent_state_of_fixed_size(device: str) -> None:
    built = recurrent_model()
    loaded = weft.load(built, device=device)
    state = loaded.state()
    assert state.pairs == {"h": "hn"}
    assert state.capacity is None
    hidden = np.zeros((1, 2, 8), np.float32)
    for step in range(4):
        x = np.random.default_rng(step).standard_normal((3, 2, 5)).astype(np.float32)
        results = loaded.run({"x": x}, state=state)
        assert list(results) == ["y"]
        y, hidden = onnxruntime_run(built, {"x": x, "h": hidden})
        np.testing.assert_allclose(results["y"], y, rtol=1e-4, atol=1e-5)
    assert state.length == 0
    assert repr(state) == f"<weft.State: 1 tensor, 64 B on {loaded.device}>"
    state.truncate(0)
    assert state.nbytes == 0
    x = np.zeros((3, 1, 5), np.float32)
    np.testing.assert_array_equal(
        loaded.run({"x": x}, state=state)["y"], loaded.run({"x": x, "h": np.zeros((1, 1, 8), np.float32)})["y"]
    )


def test_several_new_parts_and_other_axes() -> None:
    nodes = [
        node("Concat", ["memory", "x", "y"], ["longer"], axis=1),
        node("ReduceSum", ["longer"], ["total"], keepdims=0),
    ]
    inputs = [value("memory", [2, "n", 3]), value("x", [2, "a", 3]), value("y", [2, "b", 3])]
    loaded = weft.load(make_model(nodes, inputs, [value("total", []), value("longer", None)]))
    state = loaded.state(capacity={"n": 9})
    assert state.pairs == {"memory": "longer"}
    memory = np.zeros((2, 0, 3), np.float32)
    for step in range(3):
        x, y = (np.full((2, count, 3), step + count, np.float32) for count in (1, 2))
        memory = np.concatenate([memory, x, y], axis=1)
        assert loaded.run({"x": x, "y": y}, state=state)["total"] == memory.sum()
        np.testing.assert_array_equal(state.numpy()["memory"], memory)


def test_an_output_that_does_not_append_is_copied() -> None:
    """New elements in front, and a past that others read: the state is passed by hand."""
    nodes = [
        node("Concat", ["x", "past"], ["present"], axis=0),
        node("ReduceSum", ["past", "axis"], ["total"], keepdims=0),
    ]
    inputs = [value("x", ["a", 3]), value("past", ["n", 3])]
    built = make_model(nodes, inputs, [value("total", None), value("present", None)], [tensor("axis", np.array([1]))])
    loaded = weft.load(built)
    state = loaded.state(capacity=4)
    for step in range(3):
        loaded.run({"x": np.full((1, 3), step, np.float32)}, state=state)
    np.testing.assert_array_equal(state.numpy()["past"][:, 0], [2, 1, 0])
    loaded.run({"x": np.zeros((1, 3), np.float32)}, state=state)
    with pytest.raises(weft.InputError, match="the state is full: it holds 4 of 4 along 'n', and this run needs 5"):
        loaded.run({"x": np.zeros((1, 3), np.float32)}, state=state)
    assert state.length == 4


def test_pairs_can_be_passed() -> None:
    nodes = [node("Add", ["a", "b"], ["sum"]), node("Mul", ["a", "b"], ["product"])]
    inputs = [value("a", ["n"]), value("b", ["n"])]
    loaded = weft.load(make_model(nodes, inputs, [value("sum", ["n"]), value("product", ["n"])]))
    with pytest.raises(weft.InputError, match=r"no state that weft can find.*\n.*model.state\(pairs="):
        loaded.state()
    state = loaded.state(pairs={"b": "sum"})
    for total in (1, 2, 3):
        loaded.run({"a": np.ones(2, np.float32)}, state=state)
        np.testing.assert_array_equal(state.numpy()["b"], [total, total])
    with pytest.raises(weft.InputError, match="pairs: the model has no input 'c'"):
        loaded.state(pairs={"c": "sum"})
    with pytest.raises(weft.InputError, match="pairs: the model has no output 'c'"):
        loaded.state(pairs={"a": "c"})
    with pytest.raises(weft.InputError, match="two inputs come back as the same output"):
        loaded.state(pairs={"a": "sum", "b": "sum"})
    with pytest.raises(weft.InputError, match="pairs must be a dict"):
        loaded.state(pairs=["a"])  # type: ignore[arg-type]


def test_wrong_capacities_are_errors() -> None:
    loaded = weft.load(concat_decoder(1))
    with pytest.raises(weft.InputError, match=f"the state grows along '{PAST}': say how far"):
        loaded.state()
    with pytest.raises(weft.InputError, match="the state has no dim 'sequence'"):
        loaded.state(capacity={"sequence": 3, PAST: 4})
    with pytest.raises(weft.InputError, match="must be a positive number, not 0"):
        loaded.state(capacity={PAST: 0})
    state = loaded.state(capacity={PAST: 8, "batch_size": 2})
    with pytest.raises(weft.InputError, match="'batch_size' is 1 in this run and 2 in the capacity of the state"):
        advance(loaded, state, 1)
    advance(loaded, state, 2, batch=2)
    assert state.capacity == 8
    assert state.nbytes == 2 * 2 * HEADS * 8 * SIZE * 4
    assert repr(state) == f"<weft.State: length 2 of 8, 8 KiB on {loaded.device}>"


def test_wrong_states_are_errors() -> None:
    loaded = weft.load(concat_decoder(1))
    state = loaded.state(capacity=8)
    with pytest.raises(weft.InputError, match=r"state must be a weft\.State, not 7"):
        loaded.run(feeds(0, 1), state=7)  # type: ignore[arg-type]
    other = weft.load(concat_decoder(1))
    with pytest.raises(weft.InputError, match="this state belongs to another model"):
        other.run(feeds(0, 1), state=state)
    with pytest.raises(weft.InputError, match=r"input .past_key_values\.0\.key. is held by the state"):
        loaded.run({**feeds(0, 1), **empty_past(loaded)}, state=state)
    advance(loaded, state, 2)
    with pytest.raises(weft.InputError, match="the state has 1 for 'batch_size', and this run 2"):
        advance(loaded, state, 1, batch=2)
    with pytest.raises(weft.DeviceError, match="this state is on 'cpu', and the model runs on 'reference'"):
        loaded.on("reference").run(feeds(2, 1), state=state)


def test_the_reference_device_passes_the_state_by_hand() -> None:
    loaded = weft.load(concat_decoder(1), device="reference")
    state = loaded.state(capacity=8)
    expected, _ = decode(loaded.run, empty_past(loaded), [2, 1])
    for new, logits in zip((2, 1), expected):
        np.testing.assert_array_equal(advance(loaded, state, new)["logits"], logits)


def test_a_state_outlives_new_weights() -> None:
    loaded = weft.load(concat_decoder(1))
    state = loaded.state(capacity=8)
    advance(loaded, state, 3)
    past = state.numpy()
    loaded.set_weight("head", np.zeros((HEADS * SIZE, WORDS), np.float32))
    results = advance(loaded, state, 1)
    np.testing.assert_array_equal(results["logits"], loaded.run({**feeds(3, 1), **past})["logits"])
    assert not results["logits"].any()
    assert state.length == 4


def test_memory_counts_the_state() -> None:
    loaded = weft.load(grouped_decoder())
    state = loaded.state(capacity=100)
    memory = loaded.memory({"sequence_length": 1, PAST: 60}, state=state)
    assert memory.state == 4 * SHARED * 100 * SIZE * 4
    assert memory.peak == memory.weights + memory.arena + memory.workspace + memory.outputs + memory.state
    advance(loaded, state, 2)
    assert state.nbytes == memory.state
    assert loaded.memory({"sequence_length": 1}, state=state).sizes[PAST] == 2
    with pytest.raises(weft.InputError, match="the capacity of the state is exceeded by 21"):
        loaded.memory({"sequence_length": 1, PAST: 120}, state=state)


def test_a_memory_limit_counts_the_state() -> None:
    loaded = weft.load(concat_decoder(1), memory_limit="2MB")
    advance(loaded, loaded.state(capacity=100), 3)
    with pytest.raises(weft.OutOfMemoryError, match="of them hold the state"):
        advance(loaded, loaded.state(capacity=10_000), 3)


def test_names_of_exporters() -> None:
    for source, output in (
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.3.encoder.value", "present.3.encoder.value"),
        ("past.7", "present.7"),
        ("past_key_self_0", "present_key_self_0"),
        ("state", "stateN"),
        ("h", "hn"),
        ("h0", "hn"),
        ("c_0", "c_n"),
        ("r1i", "r1o"),
        ("cache_last_channel", "cache_last_channel_next"),
        ("input_states_2", "output_states_2"),
        ("in_cache0", "out_cache0"),
        ("prev_state", "new_state"),
    ):
        assert output in list(list_output_names(source)), source
    assert "output" not in list(list_output_names("input"))


@DECODERS
def test_the_program_is_cached(
    build: Callable[[], onnx.ModelProto],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    onnx.save(build(), tmp_path / "decoder.onnx")
    logits = []
    for _ in range(2):
        loaded = weft.load(tmp_path / "decoder.onnx", device="cpu")
        state = loaded.state(capacity=8)
        with caplog.at_level("INFO", "weft"):
            logits.append([advance(loaded, state, new)["logits"] for new in (3, 1)])
        del loaded, state
        entries.await_writes()
    assert sum("a program that holds a state is compiled" in record.message for record in caplog.records) == 1
    assert sum("holds a state is taken from the cache" in record.message for record in caplog.records) == 1
    for first, second in zip(*logits):
        np.testing.assert_array_equal(first, second)
