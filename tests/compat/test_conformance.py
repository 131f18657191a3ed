"""The conformance runner: comparison, cases, isolation of workers, known failures and the command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.backend.test.runner import Runner

from weft.cli import conformance as command
from weft.compat.conformance import (
    KINDS,
    CaseResult,
    ConformanceReport,
    new_failures,
    read_known_failures,
    run_suite,
    stale_entries,
)
from weft.compat.conformance import run as runner
from weft.compat.conformance.cases import collect_cases, read_data_sets
from weft.compat.conformance.compare import find_difference
from weft.errors import DeviceError, InputError, InternalError

KNOWN_FAILURES = Path(__file__).parents[1] / "conformance" / "known_failures.txt"
TOLERANCES = {"rtol": 1e-3, "atol": 1e-7}


def result(name: str, status: Any = "passed", reason: str = "", ops: tuple[str, ...] = ("Abs",)) -> CaseResult:
    return CaseResult(name, "node", ops, status, reason, 0.5)


def report(*cases: CaseResult) -> ConformanceReport:
    return ConformanceReport("reference", "1.2.3", 1.0, cases)


class TestCompare:
    @pytest.mark.parametrize(
        ("actual", "expected"),
        [
            (np.float32(1.0005), np.float32(1)),
            (np.array([np.nan, np.inf]), np.array([np.nan, np.inf])),
            (np.array(["a", "b"], object), np.array(["a", "b"], object)),
            (np.array([1, 2], ml_dtypes.int4), np.array([1, 2], ml_dtypes.int4)),
            (np.array([1.0], ml_dtypes.float8_e8m0fnu), np.array([1.0], ml_dtypes.float8_e8m0fnu)),
            (np.array([1.0078125], ml_dtypes.bfloat16), np.array([1.0], ml_dtypes.bfloat16)),
            ([np.ones(2), np.zeros((0, 3))], [np.ones(2), np.zeros((0, 3))]),
            ({"cat": 0.5, "dog": 0.25}, {"cat": 0.5, "dog": 0.25}),
            ([{1: np.float32(2)}], [{1: np.float32(2)}]),
            (np.array([1 + 1j]), np.array([1 + 1j])),
            (None, None),
        ],
    )
    def test_agreement(self, actual: Any, expected: Any) -> None:
        assert find_difference(actual, expected, **TOLERANCES) is None

    @pytest.mark.parametrize(
        ("actual", "expected", "message"),
        [
            (np.float32(1.01), np.float32(1), "differs in 1 of 1 elements, first at []: 1.01, expected 1.0"),
            (np.ones(3), np.ones((1, 3)), "has shape [3], expected [1, 3]"),
            (np.ones(3), np.ones(3, np.float32), "has dtype float64, expected float32"),
            (np.array([np.nan]), np.array([0.0]), "differs in 1 of 1 elements, first at [0]: nan, expected 0.0"),
            (
                np.array(["a", "b"], object),
                np.array(["a", "c"], object),
                "differs in 1 of 2 elements, first at [1]: b, expected c",
            ),
            (
                np.array([1, 2], ml_dtypes.int4),
                np.array([1, 3], ml_dtypes.int4),
                "differs in 1 of 2 elements, first at [1]: 2, expected 3",
            ),
            ([np.ones(2)], [np.ones(2), np.ones(2)], "has 1 elements, expected 2"),
            ([np.ones(2)], [np.zeros(2)], "element 0 differs in 2 of 2 elements, first at [0]: 1.0, expected 0.0"),
            (np.ones(2), [np.ones(2)], "is a tensor, expected a sequence"),
            ([np.ones(2)], np.ones(2), "is a sequence, expected a tensor"),
            (None, np.ones(2), "is an empty optional, expected a tensor"),
            (np.ones(2), None, "is a tensor, expected an empty optional"),
            (1.0, np.ones(()), "is a float, expected a tensor"),
            ({1: 0.5}, {2: 0.5}, "has the keys [1], expected [2]"),
            ({1: 0.5}, {1: 0.25}, "key 1 differs in 1 of 1 elements, first at []: 0.5, expected 0.25"),
        ],
    )
    def test_disagreement(self, actual: Any, expected: Any, message: str) -> None:
        assert find_difference(actual, expected, **TOLERANCES) == message

    @given(
        st.sampled_from(["float32", "float16", "bfloat16", "float64", "int32", "int4", "bool", "float8_e4m3fn"]),
        st.lists(st.tuples(st.floats(-6, 6), st.sampled_from([0, 1e-8, 5e-4, 2e-3, 2e-2, 1])), max_size=4),
        st.sampled_from([np.inf, np.nan, 0.0]),
    )
    @settings(deadline=None)
    def test_agrees_with_the_runner_of_onnx(
        self, dtype: str, values: list[tuple[float, float]], special: float
    ) -> None:
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        extra = [] if kind.kind in "ib" or dtype == "int4" else [special]
        expected = np.array([value for value, _ in values] + extra, np.float64).astype(kind)
        actual = np.array([value + change for value, change in values] + extra, np.float64).astype(kind)
        try:
            Runner.assert_similar_outputs([expected], [actual], **TOLERANCES)
        except AssertionError:
            agrees = False
        else:
            agrees = True
        assert (find_difference(actual, expected, **TOLERANCES) is None) == agrees


class TestCases:
    def test_folder_cases_have_data(self) -> None:
        cases = collect_cases(["simple", "pytorch-operator"])
        assert len(cases) > 50
        for case in cases.values():
            sets = list(read_data_sets(case))
            assert sets, case.info
            assert all(data.outputs for data in sets)
            assert case.info.ops

    def test_light_models_stand_in_for_downloads(self) -> None:
        cases = collect_cases(["real"])
        assert not [case.info.name for case in cases.values() if case.missing]
        (data,) = read_data_sets(cases["test_squeezenet"])
        (image,) = data.inputs.values()
        assert image.dtype == np.float32
        assert image.shape == (1, 3, 224, 224)
        assert image.max() < 1


class TestIsolation:
    @pytest.fixture(scope="class")
    @classmethod
    def hostile(cls) -> dict[str, CaseResult]:
        """The results of cases that the loader `conformance/loaders.py` breaks, by name."""
        progress: list[str] = []
        report = run_suite(
            "reference",
            kinds=["simple"],
            pattern="^test_(expand_shape_model[134]|shrink|sign_model|single_relu_model)",
            loader="conformance.loaders:hostile",
            progress=lambda case, total: progress.append(f"{case.name} of {total}"),
        )
        assert sorted(progress) == [f"{case.name} of 6" for case in report.cases]
        return {case.name: case for case in report.cases}

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("test_expand_shape_model1", "crashed with SIGSEGV"),
            ("test_expand_shape_model3", "exited with status 3"),
        ],
    )
    def test_dead_worker_is_a_failure(self, hostile: dict[str, CaseResult], name: str, reason: str) -> None:
        assert (hostile[name].status, hostile[name].reason) == ("failed", reason)

    def test_hanging_worker_is_a_failure(self) -> None:
        """Without other cases, which could exceed the short timeout on a busy machine."""
        loader, pattern = "conformance.loaders:hostile", "^test_expand_shape_model2$"
        (case,) = run_suite("reference", kinds=["simple"], pattern=pattern, timeout=0.5, loader=loader).cases
        assert (case.status, case.reason) == ("failed", "no answer within 0.5 s")

    def test_printed_text_is_not_an_answer(self, hostile: dict[str, CaseResult]) -> None:
        assert hostile["test_expand_shape_model4"].status == "passed"

    def test_reasons_are_one_line(self, hostile: dict[str, CaseResult]) -> None:
        assert hostile["test_shrink"].reason.startswith("ValueError: first line second line long")
        assert len(hostile["test_shrink"].reason) < 400
        assert hostile["test_sign_model"].reason.startswith("output 'y' differs in")

    def test_cases_after_a_failure_run(self, hostile: dict[str, CaseResult]) -> None:
        assert hostile["test_single_relu_model"].status == "passed"
        assert hostile["test_single_relu_model"].ops == ("Relu",)

    def test_interrupted_run_ends_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If it waited for the hanging worker, this test would time out."""
        monkeypatch.setattr(runner, "_CASES_PER_WORKER", 1)

        def interrupt(case: CaseResult, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_suite(
                "reference",
                kinds=["simple"],
                pattern="^test_expand_shape_model[24]$",
                timeout=3600,
                loader="conformance.loaders:hostile",
                progress=interrupt,
            )

    def test_worker_that_cannot_start_is_an_error(self) -> None:
        with pytest.raises(InternalError, match=r"does not start: exited .*no_such_module"):
            run_suite("reference", kinds=["simple"], loader="no_such_module:load", workers=1)

    def test_bad_requests(self) -> None:
        with pytest.raises(InputError, match="no kind 'nodes'"):
            run_suite("reference", kinds=["nodes"])
        with pytest.raises(InputError, match="not a regular expression"):
            run_suite("reference", pattern="(")


class TestKnownFailures:
    def test_reading(self, tmp_path: Path) -> None:
        path = tmp_path / "known.txt"
        path.write_text("# a comment\n\ntest_a  # its data is wrong\ntest_b # a # b\n")
        assert read_known_failures(path) == {"test_a": "its data is wrong", "test_b": "a # b"}

    @pytest.mark.parametrize("line", ["test_a", "test_a #", "test_a test_b # two", "test_a # x\ntest_a # y"])
    def test_bad_lines(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "known.txt"
        path.write_text(line)
        with pytest.raises(InputError, match="does not name one new case"):
            read_known_failures(path)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot read"):
            read_known_failures(tmp_path / "none.txt")

    def test_known_failure(self) -> None:
        run, reasons = report(result("a"), result("b", "failed", "wrong")), {"b": "reason"}
        assert new_failures(run, reasons) == []
        assert stale_entries(run, reasons, whole=True) == []

    def test_new_failure(self) -> None:
        failure = result("a", "failed", "wrong")
        assert new_failures(report(failure), {}) == [failure]

    def test_passing_case_must_leave_the_list(self) -> None:
        (problem,) = stale_entries(report(result("a")), {"a": "reason"}, whole=True)
        assert "remove it from the list" in problem

    def test_random_case_may_pass_or_differ(self) -> None:
        reasons = {"a": "random: other numbers", "b": "random: other numbers"}
        run = report(result("a"), result("b", "failed", "differs in 1 of 2"))
        assert new_failures(run, reasons) == []
        assert stale_entries(run, reasons, whole=True) == []
        crash = result("b", "failed", "crashed")
        assert new_failures(report(result("a"), crash), reasons) == [crash]

    def test_entry_without_a_case(self) -> None:
        assert stale_entries(report(result("a")), {"b": "reason"}, whole=False) == []
        (problem,) = stale_entries(report(result("a")), {"b": "reason"}, whole=True)
        assert "no such case" in problem


class TestCommand:
    CASES = (
        result("test_a", ops=("Abs", "Add")),
        result("test_b", "failed", "output 'y' has [brackets]", ops=("Add",)),
        result("test_c", "skipped", "no data", ops=()),
    )

    def run(self, monkeypatch: pytest.MonkeyPatch, cases: tuple[CaseResult, ...], *options: str) -> int:
        monkeypatch.setattr(command, "run_suite", lambda *_, **__: report(*cases))
        parser = argparse.ArgumentParser()
        command.add_parser(parser.add_subparsers())
        return command.run(parser.parse_args(["conformance", *options]))

    def test_tables(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(monkeypatch, self.CASES) == 1
        lines = capsys.readouterr().out.splitlines()
        assert "failed: test_b: output 'y' has [brackets]" in lines
        assert "skipped: test_c: no data" in lines
        assert lines[-1] == "1 passed, 1 failed, 1 skipped"
        assert any("Add" in line for line in lines)
        assert not any("Abs" in line for line in lines)

    def test_json(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert self.run(monkeypatch, self.CASES[:1], "--json") == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out) == {
            "device": "reference",
            "onnx_version": "1.2.3",
            "seconds": 1.0,
            "total": 1,
            "passed": 1,
            "failed": 0,
            "skipped": 0,
            "cases": [
                {
                    "name": "test_a",
                    "kind": "node",
                    "ops": ["Abs", "Add"],
                    "status": "passed",
                    "reason": "",
                    "seconds": 0.5,
                }
            ],
        }
        assert printed.err.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
        path = tmp_path / "report.json"
        assert self.run(monkeypatch, self.CASES, "-o", str(path)) == 1
        assert json.loads(path.read_text())["failed"] == 1

    def test_known_failures(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "known.txt"
        path.write_text("test_b  # reason")
        assert self.run(monkeypatch, self.CASES, "--known-failures", str(path)) == 0
        assert "known failure: test_b: output 'y' has [brackets]" in capsys.readouterr().out.splitlines()
        path.write_text("test_b  # reason\ntest_a  # reason")
        assert self.run(monkeypatch, self.CASES, "--known-failures", str(path)) == 1
        path.write_text("")
        assert self.run(monkeypatch, self.CASES, "--known-failures", str(path)) == 1

    def test_missing_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(DeviceError, match="no device 'moon'"):
            self.run(monkeypatch, self.CASES, "--device", "moon")

    @pytest.mark.parametrize("option", [("--workers", "0"), ("--timeout", "-1"), ("--timeout", "nan")])
    def test_bad_options(self, monkeypatch: pytest.MonkeyPatch, option: tuple[str, str]) -> None:
        with pytest.raises(SystemExit):
            self.run(monkeypatch, (), *option)


def test_suite_is_complete() -> None:
    """scripts/test runs the suite itself, with `weft conformance` on each device."""
    cases = collect_cases(KINDS)
    assert len(cases) >= 2033, "the suite of the installed onnx is smaller than the lists of known failures expect"
    assert not [case.info.name for case in cases.values() if case.missing]
    for path in KNOWN_FAILURES.parent.glob("known_failures*.txt"):
        assert set(read_known_failures(path)) <= set(cases), path.name
