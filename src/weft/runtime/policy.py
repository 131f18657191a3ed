"""The devices that a model may run on, in order: from the caller, then the environment, then defaults.

`weft.load` takes a device, a chain of devices, or a `DevicePolicy`. `resolve_settings` merges all of them and keeps the
origin of each setting; `route` turns the settings into the available devices, in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union

from weft.errors import Attempt, DeviceError, DeviceFallbackError, InputError, short_repr
from weft.records import dataclass
from weft.runtime import environment
from weft.runtime.arguments import whole_number
from weft.runtime.devices import automatic, choose
from weft.runtime.environment import Variable

if TYPE_CHECKING:
    from weft.runtime.ranking import Ranking

AUTO = "auto"
PICKS = COST, BENCHMARK, ORDER = ("cost", "benchmark", "order")
RUNS = 10  # of a benchmark, on each device
ARGUMENT, DEFAULT = "argument", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePolicy:
    """The devices that a model may run on, and how to pick one of them. None leaves a setting to the environment.

    allow: names of devices, or kinds such as "webgpu", even if "auto" would not choose them; None allows all that
        "auto" may choose.
    deny: names or kinds that are never chosen.
    prefer: names or kinds to try before all others, in this order, even if they are slower.
    pick: "cost" picks the device with the lowest predicted time, from a calibration of each device; "benchmark" times
        the model itself on each device; "order" takes the best kind (GPUs before the CPU).
    runs: the minimum number of runs on each device, for "benchmark".
    """

    allow: str | Sequence[str] | None = None
    deny: str | Sequence[str] | None = None
    prefer: str | Sequence[str] | None = None
    pick: Literal["cost", "benchmark", "order"] | None = None
    runs: int | None = None

    def __repr__(self) -> str:
        """Show what is not None."""
        settings = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return (
            f"DevicePolicy({', '.join(f'{name}={short_repr(value)}' for name, value in settings if value is not None)})"
        )

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "prefer"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else _check_names(value, name))
        if self.pick is not None:
            _check_pick(self.pick, "pick")
        if self.runs is not None:
            try:
                object.__setattr__(self, "runs", whole_number(self.runs, "runs"))
            except InputError as error:
                raise DeviceError(error.problem) from None


DeviceOption = Union[str, Sequence[str], DevicePolicy]


T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A setting with its origin: an argument, an environment variable, or the default."""

    name: str
    value: T
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a load: a chain of devices to try, or how to pick one of the available ones."""

    device: Setting[str | tuple[str, ...]]  # a name, or a chain
    allow: Setting[tuple[str, ...] | None]
    deny: Setting[tuple[str, ...]]
    prefer: Setting[tuple[str, ...]]
    pick: Setting[str]
    runs: Setting[int]

    @property
    def chain(self) -> tuple[str, ...] | None:
        """The devices that were named; None if one is picked."""
        value = self.device.value
        names = (value,) if isinstance(value, str) else value
        return None if names == (AUTO,) else names

    @property
    def option(self) -> DeviceOption:
        """The caller's settings without those of the environment, as an argument for another load."""
        value = self.device.value
        if self.device.origin == ARGUMENT and value != AUTO:
            return value
        arguments = {setting.name: setting.value for setting in self if setting.origin == ARGUMENT}
        arguments.pop("device", None)
        return DevicePolicy(**arguments) if arguments else AUTO

    def __iter__(self) -> Iterator[Setting[Any]]:
        yield from (self.device, self.allow, self.deny, self.prefer, self.pick, self.runs)


@dataclass(frozen=True, slots=True)
class Route:
    """The available devices that may run a model, in order, and how the first is picked.

    `pick` is "named" for a single device, "chain" for several in order, or one of PICKS; the first `preferred` devices
    stay before the others. `absent` are devices that were named and are not available.
    """

    devices: tuple[str, ...]
    pick: str
    preferred: int
    runs: int
    absent: tuple[Attempt, ...]
    settings: Settings
    explicit_reason: str = ""  # why the first device is first, if `pick` does not explain it
    ranking: Ranking | None = None  # that ordered the devices

    @property
    def is_detour(self) -> bool:
        """Whether the first device of the chain is not available."""
        chain = self.settings.chain
        return bool(self.absent) and chain is not None and chain[0] == self.absent[0].device

    @property
    def reason(self) -> str:
        """Why the first device is first."""
        if self.explicit_reason:
            return self.explicit_reason
        if self.pick == "named":
            return f"named by {self.settings.device.origin}"
        if self.pick == "chain":
            return "the first of the chain that is available"
        return "no other device is available" if len(self.devices) == 1 else f"the first by {self.pick}"


def resolve_settings(device: DeviceOption = AUTO, variables: Mapping[str, str] | None = None) -> Settings:
    """Resolve the settings of a load with this `device`; DeviceError if one is invalid."""
    policy = device if isinstance(device, DevicePolicy) else DevicePolicy()
    if isinstance(device, DevicePolicy) or (isinstance(device, str) and device == AUTO):
        named = _device_from_environment(variables)
    else:
        named = Setting("device", device if isinstance(device, str) else _check_names(device, "device"), ARGUMENT)
    if isinstance(device, DevicePolicy) and device != DevicePolicy() and named.origin != DEFAULT:
        named = Setting("device", AUTO, ARGUMENT)  # a policy overrides a device of the environment
    pick = _resolve_setting(
        "pick", policy.pick, environment.text_of(environment.PICK, variables), environment.PICK, "cost"
    )
    if pick.origin == environment.PICK.name:
        _check_pick(pick.value, environment.PICK.name)
    allowed = environment.listed(environment.ALLOWED, variables)
    denied = environment.listed(environment.DENIED, variables)
    return Settings(
        named,
        _resolve_setting("allow", policy.allow, allowed, environment.ALLOWED, None),
        _resolve_setting("deny", policy.deny, denied, environment.DENIED, ()),
        _resolve_setting("prefer", policy.prefer, None, None, ()),
        pick,
        _resolve_setting("runs", policy.runs, None, None, RUNS),
    )


def is_open(device: DeviceOption) -> bool:
    """Whether neither the caller nor the environment says which devices a model may run on."""
    settings = resolve_settings(device)
    return settings.device == Setting("device", AUTO, DEFAULT) and settings.allow.value is None


def route(device: DeviceOption = AUTO) -> Route:
    """Find the devices to try, in order; DeviceError if none is available."""
    settings = resolve_settings(device)
    chain = settings.chain
    if chain is not None:
        if settings.device.origin != ARGUMENT:
            chain = _without_denied(chain, settings)
        if len(chain) == 1:
            return Route((choose(chain[0]).name,), "named", 0, settings.runs.value, (), settings)
        available, absent = _find_available(chain)
        return Route(_require_device(available, absent), "chain", 0, settings.runs.value, absent, settings)
    if settings.allow.value is not None:
        available, absent = _find_available(settings.allow.value)
    else:
        available, absent = [device.name for device in automatic()], ()
    denied, prefer = settings.deny.value, settings.prefer.value
    available = [name for name in available if not _is_selected(name, denied)]
    preferred = list(dict.fromkeys(name for pattern in prefer for name in available if _is_selected(name, (pattern,))))
    ordered = [*preferred, *(name for name in available if name not in preferred)]
    if not ordered and not absent:
        problem = f"no device is left: {', '.join(denied)} is denied by {settings.deny.origin}"
        raise DeviceError(problem, hint="see weft.devices()")
    pick, runs = settings.pick.value, settings.runs.value
    return Route(_require_device(ordered, absent), pick, len(preferred), runs, absent, settings)


def _device_from_environment(variables: Mapping[str, str] | None) -> Setting[str | tuple[str, ...]]:
    name = environment.text_of(environment.DEVICE, variables)
    chain = environment.listed(environment.CHAIN, variables)
    if name is not None and chain is not None:
        problem = f"{environment.DEVICE.name} and {environment.CHAIN.name} are both set"
        raise DeviceError(problem, hint="set one of them")
    if chain is not None:
        return Setting("device", chain, environment.CHAIN.name)
    return Setting("device", AUTO, DEFAULT) if name is None else Setting("device", name, environment.DEVICE.name)


def _resolve_setting(
    name: str, argument: Any, from_variable: Any, variable: Variable | None, default: Any
) -> Setting[Any]:
    if argument is not None:
        return Setting(name, argument, ARGUMENT)
    if from_variable is not None and variable is not None:
        return Setting(name, from_variable, variable.name)
    return Setting(name, default, DEFAULT)


def _check_names(value: Any, option: str) -> tuple[str, ...]:
    """Return one name or several as a tuple; DeviceError for anything else."""
    if isinstance(value, str):
        return (value,)
    try:
        names = tuple(value)
    except Exception:  # any error of an object that cannot be iterated
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        hint = 'a device is chosen by its name, for instance device="cpu"; see weft.devices()'
        raise DeviceError(f"{option} must be a name or a list of names, not {short_repr(value)}", hint=hint)
    if not names and option != "deny":
        raise DeviceError(f"{option} names no device", hint="see weft.devices()")
    return names


def _check_pick(pick: object, origin: str) -> None:
    if pick not in PICKS:
        raise DeviceError(f"{origin} must be one of {', '.join(PICKS)}, not {short_repr(pick)}")


def _find_available(names: Sequence[str]) -> tuple[list[str], tuple[Attempt, ...]]:
    """Return the named devices that are available, each once, and why the others are not."""
    available: dict[str, None] = {}
    absent: list[Attempt] = []
    for name in names:
        try:
            available.update(dict.fromkeys([d.name for d in automatic()] if name == AUTO else [choose(name).name]))
        except DeviceError as error:
            absent.append(Attempt(name, "finding", error.problem))
    return list(available), tuple(absent)


def _require_device(available: Sequence[str], absent: Sequence[Attempt]) -> tuple[str, ...]:
    if not available:
        raise DeviceFallbackError(absent)
    return tuple(available)


def _is_selected(device: str, names: Sequence[str]) -> bool:
    """Whether one of these names or kinds selects a device."""
    kind = device.partition(":")[0]
    return any(device == name or kind == name or _selects_device(name, device) for name in names)


def _selects_device(name: str, device: str) -> bool:
    try:
        return name.partition(":")[0] == device.partition(":")[0] and choose(name).name == device
    except DeviceError:
        return False


def _without_denied(chain: tuple[str, ...], settings: Settings) -> tuple[str, ...]:
    allowed = tuple(name for name in chain if not _is_selected(name, settings.deny.value))
    if not allowed:
        problem = f"{settings.device.origin} names {', '.join(chain)}, which {settings.deny.origin} denies"
        raise DeviceError(problem, hint="change one of the two")
    return allowed
