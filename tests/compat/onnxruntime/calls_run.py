"""Calls that run models: names, feeds, values of every kind, and invalid ones."""

from __future__ import annotations

import json
import threading
from collections import UserDict
from types import MappingProxyType
from typing import Any

import numpy as np
from calls import add_calls, call, open_session, run, session
from small_models import ELEMENTS, identity, ones, ramp

add_calls(
    "run",
    {
        "all": lambda ort: run(ort, "add", x=ramp(), y=ones()),
        "no_names": lambda ort: run(ort, "add", [], x=ramp(), y=ones()),
        "tuple_of_names": lambda ort: run(ort, "add", ("z",), x=ramp(), y=ones()),
        "one_of_two": lambda ort: run(ort, "two", ["n"], x=ramp()),
        "other_order": lambda ort: run(ort, "two", ["n", "r"], x=ramp()),
        "twice": lambda ort: run(ort, "two", ["n", "n"], x=ramp()),
        "both": lambda ort: run(ort, "two", x=ramp()),
        "keywords": lambda ort: session(ort, "two").run(output_names=None, input_feed={"x": ramp()}),
        "options_none": lambda ort: session(ort, "two").run(None, {"x": ramp()}, None),
        "options": lambda ort: session(ort, "two").run(None, {"x": ramp()}, ort.RunOptions()),
        "options_keyword": lambda ort: session(ort, "two").run(None, {"x": ramp()}, run_options=ort.RunOptions()),
        "no_inputs": lambda ort: run(ort, "constant"),
        "empty_batch": lambda ort: run(ort, "two", x=np.zeros((0, 3), np.float32)),
        "scalar_output": lambda ort: run(ort, "sum", x=ramp()),
        "open_output": lambda ort: run(ort, "nonzero", x=ramp()),
        "list": lambda ort: run(ort, "add", x=[[1.5, 2, 3]], y=ones()),
        "list_of_ints": lambda ort: run(ort, "add", x=[[1, 2, 3]], y=ones()),
        "list_of_arrays": lambda ort: run(ort, "add", x=[np.ones(3, np.float32), np.ones(3, np.float32)], y=ones()),
        "transposed": lambda ort: run(ort, "add", x=np.arange(6, dtype=np.float32).reshape(3, 2).T, y=ones()),
        "strided": lambda ort: run(ort, "add", x=np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2], y=ones()),
        "negative_strides": lambda ort: run(ort, "add", x=ramp()[::-1, ::-1], y=ones()),
        "fortran": lambda ort: run(ort, "add", x=np.asfortranarray(ramp()), y=ones()),
        "broadcast": lambda ort: run(ort, "add", x=np.broadcast_to(np.float32(2), (2, 3)), y=ones()),
        "read_only": lambda ort: run(ort, "add", x=_read_only(ramp()), y=ones()),
        "ort_values_fed": lambda ort: run(ort, "add", x=ort.OrtValue.ortvalue_from_numpy(ramp()), y=ones()),
        "subclass": lambda ort: run(ort, "add", x=ramp().view(np.matrix), y=ones()),
        "scalar_of_one_element": lambda ort: run(ort, "sequence_at", s=[ramp(), ones()], i=np.array([1])),
        "override": lambda ort: run(ort, "overridable", x=ones(), w=np.zeros(3, np.float32)),
        "default": lambda ort: run(ort, "overridable", x=ones()),
        "int32_for_int64": lambda ort: run(ort, "gather", x=ramp(), i=np.array([1], np.int32)),
        "list_for_int64": lambda ort: run(ort, "gather", x=ramp(), i=[1, 0]),
        "wrong_output": lambda ort: run(ort, "add", ["q"], x=ones(), y=ones()),
        "text_as_names": lambda ort: run(ort, "add", "z", x=ones(), y=ones()),
        "number_as_name": lambda ort: run(ort, "add", [3], x=ones(), y=ones()),
        "missing": lambda ort: run(ort, "add", x=ones()),
        "nothing": lambda ort: run(ort, "add"),
        "extra": lambda ort: run(ort, "add", x=ones(), y=ones(), w=ones()),
        "wrong_name": lambda ort: run(ort, "add", x=ones(), w=ones()),
        "rank_below": lambda ort: run(ort, "add", x=ones(3), y=ones()),
        "rank_above": lambda ort: run(ort, "add", x=ones(1, 2, 3), y=ones()),
        "size": lambda ort: run(ort, "add", x=ones(2, 4), y=ones()),
        "sizes_apart": lambda ort: run(ort, "add", x=ones(2, 3), y=ones(5, 3)),
        "float64": lambda ort: run(ort, "add", x=ones().astype(np.float64), y=ones()),
        "float16": lambda ort: run(ort, "add", x=ones().astype(np.float16), y=ones()),
        "int32": lambda ort: run(ort, "add", x=ones().astype(np.int32), y=ones()),
        "bools": lambda ort: run(ort, "add", x=ones().astype(bool), y=ones()),
        "objects": lambda ort: run(ort, "add", x=ones().astype(object), y=ones()),
        "text_for_numbers": lambda ort: run(ort, "add", x=np.array([["a", "b", "c"]]), y=ones()),
        "python_number": lambda ort: run(ort, "add", x=1.0, y=ones()),
        "numpy_number": lambda ort: run(ort, "add", x=np.float32(1), y=ones()),
        "python_text": lambda ort: run(ort, "add", x="abc", y=ones()),
        "none": lambda ort: run(ort, "add", x=None, y=ones()),
        "none_for_an_unknown_name": lambda ort: run(ort, "add", x=ones(), y=ones(), z=None),
        "none_for_an_omitted_name": lambda ort: session(ort, "add").run(None, {"x": ones(), "y": ones(), "": None}),
        "array_like": lambda ort: run(ort, "add", x=ArrayLike(), y=ones()),
        "big_endian": lambda ort: run(ort, "add", x=ones().astype(">f4"), y=ones()),
        "feed_list": lambda ort: session(ort, "add").run(None, [ones(), ones()]),
        "feed_none": lambda ort: session(ort, "add").run(None, None),
        "feed_first": lambda ort: session(ort, "add").run({"x": ones(), "y": ones()}),
        "wrong_options": lambda ort: session(ort, "two").run(None, {"x": ones()}, 3),
        "index_too_large": lambda ort: run(ort, "gather", x=ones(), i=np.array([9])),
        "impossible_reshape": lambda ort: run(ort, "reshape", x=ones(), i=np.array([9])),
        "impossible_product": lambda ort: run(ort, "product", x=ones(), w=ones(2, 2)),
        "impossible_concat": lambda ort: run(ort, "concat", x=ones(), y=ones(3, 2)),
    },
)
add_calls(
    "value",
    {
        "maps_of_numbers": lambda ort: run(ort, "zipmap_ints", x=ramp()),
        "maps_of_words": lambda ort: run(ort, "zipmap_strings", x=ramp()),
        "maps_as_json": lambda ort: json.dumps(run(ort, "zipmap_strings", x=ramp())),
        "dictionary": lambda ort: run(ort, "dict_strings", x={"a": 1.5, "c": 2}),
        "dictionary_of_numpy": lambda ort: run(ort, "dict_strings", x={"a": np.float64(1.5), "b": np.array(2.0)}),
        "dictionary_of_other_keys": lambda ort: run(ort, "dict_strings", x={1: 2.0}),
        "dictionary_as_array": lambda ort: run(ort, "dict_strings", x=np.ones(3)),
        "sequence": lambda ort: run(ort, "sequence_construct", x=ramp()),
        "sequence_in": lambda ort: run(ort, "sequence_at", s=[ramp(), ones()], i=np.array(1)),
        "sequence_index": lambda ort: run(ort, "sequence_at", s=[ramp(), ones()], i=np.array(7)),
        "sequence_as_array": lambda ort: run(ort, "sequence_at", s=ones(), i=np.array(0)),
        "words": lambda ort: run(ort, "text", s=np.array(["a", "bc", ""])),
        "words_of_objects": lambda ort: run(ort, "text", s=np.array(["a", "bc"], object)),
        "words_of_list": lambda ort: run(ort, "text", s=["a", "bc"]),
        "words_and_numbers": lambda ort: run(ort, "text", s=np.array(["a", 3], object)),
        "words_and_none": lambda ort: run(ort, "text", s=np.array(["a", None], object)),
        "numbers_for_text": lambda ort: run(ort, "text", s=[1, 2]),
        "array_of_numbers_for_text": lambda ort: run(ort, "text", s=np.array([1, 2])),
        "words_of_raw_bytes": lambda ort: run(ort, "text", s=np.array([b"must", b"a"], "V4")),
        "masked_words": lambda ort: run(ort, "text", s=np.ma.array(["a", "b"], mask=[False, True])),
        "words_beyond_ascii": lambda ort: run(ort, "text", s=np.array(["ä€", "日本"])),
        "optional": lambda ort: run(ort, "optional", s=np.ones(2, np.float32)),
        "optional_none": lambda ort: run(ort, "optional", s=None),
        "optional_left_out": lambda ort: run(ort, "optional"),
    },
)


MAPS: dict[str, Any] = {
    "other_keys_after_numbers": {1: 2.0, "a": 3.0},
    "float_keys": {1.5: 2.0},
    "whole_float_keys": {1.0: 2.0},
    "numpy_float_keys": {np.float64(1): 2.0},
    "bytes_as_keys": {b"a": 2.0},
    "none_as_key": {None: 2.0},
    "tuple_as_key": {(1,): 2.0},
    "large_keys": {2**70: 2.0},
    "numpy_keys": {np.int64(1): 2.0, np.int32(2): 3.0},
    "bool_keys": {True: 2.0},
    "unknown_keys": {-7: 2.0},
    "text_keys": {"a": 2.0},
    "text_values": {1: "a"},
    "none_as_value": {1: None},
    "list_as_value": {1: [2.0]},
    "array_as_value": {1: np.ones(2)},
    "int_values": {1: 2, 3: np.int64(4)},
    "userdict": UserDict({1: 2.0}),
    "proxy": MappingProxyType({1: 2.0}),
    "maps": [{1: 2.0}],
    "array": np.ones(3),
    "number": 3.0,
    "none": None,
}
INPUTS: dict[str, Any] = {
    "ragged": [[1.0, 2.0], [3.0]],
    "words_in_lists": [["a", "b", "c"]],
    "list_of_nothing": [],
    "set": {1.0},
    "range": range(3),
    "map": {"a": 1.0},
    "bytes": b"abc",
    "bytearray": bytearray(12),
    "object": object(),
    "class": float,
    "flag": True,
    "complex": np.ones((2, 3), np.complex64),
    "times": np.zeros((2, 3), "M8[s]"),
    "wide": np.ones((2, 3), np.longdouble),
    "bytes_of_numpy": np.zeros((1, 3), "V4"),
    "masked": np.ma.masked_array(np.ones((2, 3), np.float32), mask=False),
}
SEQUENCES: dict[str, Any] = {
    "of_another_type": [np.ones((2, 3))],
    "of_two_types": [np.ones((2, 3), np.float32), np.ones((2, 3))],
    "of_none": [None],
    "of_words": ["a"],
    "of_maps": [{}],
    "none": None,
    "iterator": iter([]),
}
OPTIONALS: dict[str, Any] = {
    "of_another_type": np.ones(2),
    "of_another_size": np.ones(3, np.float32),
    "of_another_rank": np.ones((2, 1), np.float32),
    "number": 1.0,
}
WORDS: dict[str, Any] = {
    "void": np.array([b"must", b"have"], np.void),
    "void_with_zeros": np.array([b"A\0A\0", b"ABC\0"], np.void),
    "void_beyond_utf8": np.array([b"\xff\xfe"], np.void),
    "numbers": np.array([1, 2]),
    "flags": np.array([True]),
    "times": np.zeros(2, "M8[s]"),
    "numpy_texts": np.array([np.str_("a")], object),
    "none": np.array([], object),
}
FEEDS: dict[str, Any] = {
    "list": [ones(), ones()],
    "none": None,
    "userdict": UserDict(x=ones(), y=ones()),
    "proxy": MappingProxyType({"x": ones(), "y": ones()}),
    "number_as_key": {"x": ones(), "y": ones(), 3: ones()},
    "none_as_key": {"x": ones(), "y": ones(), None: ones()},
}
add_calls("map", {name: lambda ort, value=value: run(ort, "dict_ints", x=value) for name, value in MAPS.items()})
add_calls("run", {name: lambda ort, value=value: run(ort, "add", x=value, y=ones()) for name, value in INPUTS.items()})
add_calls(
    "sequence",
    {
        name: lambda ort, value=value: run(ort, "sequence_at", s=value, i=np.array(0))
        for name, value in SEQUENCES.items()
    },
)
add_calls(
    "optional", {name: lambda ort, value=value: run(ort, "optional", s=value) for name, value in OPTIONALS.items()}
)
add_calls("word", {name: lambda ort, value=value: run(ort, "text", s=value) for name, value in WORDS.items()})
add_calls(
    "feed", {name: lambda ort, value=value: session(ort, "add").run(None, value) for name, value in FEEDS.items()}
)


class ArrayLike:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return ones()


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@call
def run_elements(ort: Any) -> Any:
    """Round trip of every element type that numpy has."""
    results = {}
    for element in ELEMENTS:
        if element not in ("BFLOAT16", "STRING"):
            opened = ort.InferenceSession(identity(element), providers=["CPUExecutionProvider"])
            dtype = {"FLOAT": "float32", "DOUBLE": "float64"}.get(element, element.lower())
            results[element] = (opened.get_inputs()[0].type, opened.run(None, {"s": np.array([0, 1], dtype)}))
    return results


@call
def run_gives_new_arrays(ort: Any) -> Any:
    first, second = run(ort, "two", x=ones()), run(ort, "two", x=ones())
    first[0][:] = 7
    return second, first[0].flags.writeable, first[0].flags.c_contiguous


@call
def run_gives_no_input_back(ort: Any) -> Any:
    x, words = np.array([1, 2], np.float32), np.array(["a", "b"], object)
    opened = ort.InferenceSession(identity("FLOAT"), providers=["CPUExecutionProvider"])
    for result in (opened.run(None, {"s": x})[0], run(ort, "text", s=words)[0]):
        result[:] = "9"
    return x, words, run(ort, "constant")[0].flags.writeable


@call
def run_gives_no_constant_away(ort: Any) -> Any:
    run(ort, "constant")[0][:] = 7
    return run(ort, "constant")


@call
def run_leaves_its_inputs(ort: Any) -> Any:
    x = ramp()
    run(ort, "two", x=x)
    return x


@call
def run_again_after_an_error(ort: Any) -> Any:
    try:
        run(ort, "add", x=ones(3), y=ones())
    except Exception:
        return run(ort, "add", x=ones(), y=ones())
    return None


@call
def run_other_sizes(ort: Any) -> Any:
    return [run(ort, "two", x=ones(size, 3)) for size in (1, 4, 2, 0, 7)]


@call
def run_from_threads(ort: Any) -> Any:
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        results[number] = run(ort, "two", x=ones(number + 1, 3) * number)

    run(ort, "two", x=ones())
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(results.items()))


@call
def run_terminated(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return session(ort, "two").run(None, {"x": ones()}, options)


@call
def run_after_terminate_is_reset(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    options.terminate = False
    return session(ort, "two").run(None, {"x": ones()}, options)


def _run_async(ort: Any, names: Any, feed: Any) -> Any:
    done, calls = threading.Event(), []

    def callback(results: Any, user_data: Any, failure: str) -> None:
        calls.append((results, user_data, bool(failure)))
        done.set()

    session(ort, "add").run_async(names, feed, callback, "user data")
    return done.wait(120), calls


add_calls(
    "async",
    {
        "all": lambda ort: _run_async(ort, None, {"x": ones(), "y": ones()}),
        "named": lambda ort: _run_async(ort, ["z"], {"x": ones(), "y": ones()}),
        "wrong_rank": lambda ort: _run_async(ort, ["z"], {"x": ones(), "y": ones(3)}),
        "wrong_output": lambda ort: _run_async(ort, ["q"], {"x": ones(), "y": ones()}),
        "wrong_type": lambda ort: _run_async(ort, ["z"], {"x": ones(), "y": ones().astype(np.float64)}),
        "missing": lambda ort: _run_async(ort, ["z"], {"x": ones()}),
    },
)


@call
def run_with_a_fixed_size(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    opened = open_session(ort, "add", options)
    return [value.shape for value in (*opened.get_inputs(), *opened.get_outputs())], opened.run(
        None, {"x": ones(), "y": ones()}
    )


@call
def run_with_a_wrong_fixed_size(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    return open_session(ort, "add", options).run(None, {"x": ones(3, 3), "y": ones()})


@call
def run_with_another_initializer(ort: Any) -> Any:
    options = ort.SessionOptions()
    value = ort.OrtValue.ortvalue_from_numpy(np.full(3, 9, np.float32))
    options.add_initializer("w", value)
    return open_session(ort, "overridable", options).run(None, {"x": ones()})
