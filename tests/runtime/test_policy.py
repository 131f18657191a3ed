"""The device policy from arguments and environment variables, and which of them wins."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.cli import main
from weft.errors import DeviceError, DeviceFallbackError
from weft.logs import DEVICES
from weft.runtime.devices import choose
from weft.runtime.environment import VARIABLES
from weft.runtime.policy import resolve_settings, route

ROOT = Path(__file__).parents[2]
GPU = "webgpu:llvmpipe"
GPU_NAME = "webgpu:0"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        if "DEVICE" in variable.name or "PICK" in variable.name:
            monkeypatch.delenv(variable.name, raising=False)


@pytest.mark.parametrize(
    ("device", "variables", "value", "origin"),
    [
        ("auto", {}, "auto", "default"),
        ("auto", {"WEFT_DEVICE": "cpu"}, "cpu", "WEFT_DEVICE"),
        ("reference", {"WEFT_DEVICE": "cpu"}, "reference", "argument"),
        ("auto", {"WEFT_DEVICE_CHAIN": "webgpu, cpu,"}, ("webgpu", "cpu"), "WEFT_DEVICE_CHAIN"),
        (["cpu"], {"WEFT_DEVICE_CHAIN": "webgpu,cpu"}, ("cpu",), "argument"),
        ("auto", {"WEFT_DEVICE": "  "}, "auto", "default"),
        (weft.DevicePolicy(), {"WEFT_DEVICE": "cpu"}, "cpu", "WEFT_DEVICE"),
        (weft.DevicePolicy(pick="order"), {"WEFT_DEVICE": "cpu"}, "auto", "argument"),
    ],
)
def test_device_comes_from_arguments_or_environment(
    device: Any, variables: dict[str, str], value: Any, origin: str
) -> None:
    setting = resolve_settings(device, variables).device
    assert (setting.value, setting.origin) == (value, origin)


def test_arguments_win_over_the_environment() -> None:
    variables = {"WEFT_DEVICES": "cpu,reference", "WEFT_DENY_DEVICES": "webgpu", "WEFT_PICK": "order"}
    resolved = resolve_settings(weft.DevicePolicy(allow="cpu", pick="benchmark"), variables)
    by_name = {setting.name: (setting.value, setting.origin) for setting in resolved}
    assert by_name == {
        "device": ("auto", "default"),
        "allow": (("cpu",), "argument"),
        "deny": (("webgpu",), "WEFT_DENY_DEVICES"),
        "prefer": ((), "default"),
        "pick": ("benchmark", "argument"),
        "runs": (10, "default"),
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weft.DevicePolicy(pick="luck"), "pick must be one of cost, benchmark, order, not 'luck'"),
        (lambda: weft.DevicePolicy(pick=3), "pick must be one of"),  # type: ignore[arg-type]
        (lambda: weft.DevicePolicy(runs=0), "runs must be a positive number, not 0"),
        (lambda: weft.DevicePolicy(allow=[]), "allow names no device"),
        (lambda: weft.DevicePolicy(allow=[1]), "allow must be a name or a list of names"),  # type: ignore[list-item]
        (lambda: weft.DevicePolicy(deny=7), "deny must be a name or a list of names"),  # type: ignore[arg-type]
        (lambda: resolve_settings([]), "device names no device"),
        (lambda: resolve_settings(7), "device must be a name or a list of names, not 7"),  # type: ignore[arg-type]
        (lambda: resolve_settings("auto", {"WEFT_PICK": "luck"}), "WEFT_PICK must be one of"),
        (lambda: resolve_settings("auto", {"WEFT_DEVICE": "cpu", "WEFT_DEVICE_CHAIN": "cpu"}), "are both set"),
        (lambda: route(["cuda", "webgpu:99"]), "no device can run this model:\n  cuda failed in finding"),
        (lambda: route(weft.DevicePolicy(allow="cuda")), "cuda failed in finding"),
        (lambda: route(weft.DevicePolicy(deny=["cpu", "webgpu"])), "no device is left: cpu, webgpu is denied by arg"),
    ],
)
def test_invalid_settings_are_explained(make: Any, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        make()
    assert message in str(caught.value)


def test_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert route("reference").devices == ("reference",)
    assert route("reference").pick == "named"
    assert route(["cpu", "reference", "cpu"]).devices == ("cpu", "reference")
    chain = route(["cuda", GPU, "cpu"])
    assert (chain.devices, chain.pick, chain.is_detour) == ((GPU_NAME, "cpu"), "chain", True)
    assert [(attempt.device, attempt.stage) for attempt in chain.absent] == [("cuda", "finding")]
    assert not route(["cpu", "cuda"]).is_detour
    allowed = weft.DevicePolicy(allow=["reference", GPU, "cpu"], deny="reference", prefer=["cpu"])
    assert (route(allowed).devices, route(allowed).preferred) == (("cpu", GPU_NAME), 1)
    assert GPU_NAME not in route("auto").devices  # a program that plays a GPU is used only if it is named
    monkeypatch.setenv("WEFT_DEVICES", f"{GPU_NAME},cpu")
    assert route("auto").devices == (GPU_NAME, "cpu")
    monkeypatch.setenv("WEFT_DENY_DEVICES", "webgpu:LLVMPIPE")
    assert route("auto").devices == ("cpu",)
    monkeypatch.setenv("WEFT_DEVICE_CHAIN", f"{GPU_NAME},reference")
    assert route("auto").devices == ("reference",)
    assert route(GPU_NAME).devices == (GPU_NAME,)  # a named device is used even if it is software
    monkeypatch.setenv("WEFT_DEVICE_CHAIN", GPU_NAME)
    with pytest.raises(DeviceError, match="WEFT_DEVICE_CHAIN names webgpu:0, which WEFT_DENY_DEVICES denies"):
        route("auto")


def test_all_attempts_are_listed() -> None:
    with pytest.raises(DeviceFallbackError) as caught:
        route(["cuda", "webgpu:99"])
    assert [attempt.device for attempt in caught.value.attempts] == ["cuda", "webgpu:99"]


def test_devices_command_shows_the_policy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WEFT_PICK", "order")
    assert main(["devices", "--policy", "--json"]) == 0
    by_name = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["policy"]}
    assert by_name["pick"] == {"name": "pick", "value": "order", "origin": "WEFT_PICK"}
    assert by_name["device"]["origin"] == "default"
    assert main(["devices"]) == 0
    assert "WEFT_PICK" in capsys.readouterr().out


def test_every_variable_is_in_the_table() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    rows = [f"| `{variable.name}` | {variable.value} | {variable.meaning} |" for variable in VARIABLES]
    linked = [re.sub(r"docs/guides/(\w+)\.md", r"[\1](../guides/\1.md)", row) for row in rows]
    assert [row for row in page.split("\n") if row.startswith("| `WEFT_")] == linked
    named: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        named.update(re.findall(r"\bWEFT_[A-Z_]+", path.read_text(encoding="utf-8")))
    assert named == {variable.name for variable in VARIABLES}


def test_logger_is_quiet_by_default() -> None:
    DEVICES.warning("the first thing that is said")
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("weft").handlers)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("cup", "cpu"),
        ("CPU", "cpu"),
        ("gpu", "webgpu"),
        ("nvidia", "cuda"),
        ("mps", "webgpu"),
        ("refrence", "reference"),
    ],
)
def test_misspelt_devices_get_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(weft.DeviceError, match=f"did you mean {suggestion!r}"):
        choose(name)
