"""Which devices a model may run on, in what order: what a caller says, then the environment, then what is usual.

`weft.load` takes a device, a chain of them, or a `DevicePolicy`. `in_force` puts together what is said and where it was
said; `route` makes of it the devices that are here, in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union

from weft.errors import Attempt, DeviceError, DeviceFallbackError, InputError, shown
from weft.records import dataclass
from weft.runtime import environment
from weft.runtime.arguments import whole_number
from weft.runtime.devices import automatic, choose
from weft.runtime.environment import Variable

if TYPE_CHECKING:
    from weft.runtime.choice import Ranking

AUTO = "auto"
PICKS = COST, BENCHMARK, ORDER = ("cost", "benchmark", "order")
RUNS = 10  # of a benchmark, on each device
ARGUMENT, DEFAULT = "argument", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePolicy:
    """Which devices a model may run on, and how one of several is picked. What is None is left to the environment.

    allow: names of devices, or kinds as in "webgpu"; None is all that "auto" may choose. What is named here may be a
        device that is otherwise used only if named.
    deny: names or kinds that are never chosen.
    prefer: names or kinds that come before all others, in this order, whatever is quicker.
    pick: "cost" takes the device that is quickest by what was measured of it once, "benchmark" the one that runs the
        model itself quickest, "order" the best kind (GPUs before the CPU).
    runs: how often "benchmark" runs the model on each device, at least.
    """

    allow: str | Sequence[str] | None = None
    deny: str | Sequence[str] | None = None
    prefer: str | Sequence[str] | None = None
    pick: Literal["cost", "benchmark", "order"] | None = None
    runs: int | None = None

    def __repr__(self) -> str:
        """What was said."""
        said = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return f"DevicePolicy({', '.join(f'{name}={shown(value)}' for name, value in said if value is not None)})"

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "prefer"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else _names(given, name))
        if self.pick is not None:
            _check_pick(self.pick, "pick")
        if self.runs is not None:
            try:
                object.__setattr__(self, "runs", whole_number(self.runs, "runs"))
            except InputError as error:
                raise DeviceError(error.problem) from None


DeviceOption = Union[str, Sequence[str], DevicePolicy]


Held = TypeVar("Held")


@dataclass(frozen=True)
class Setting(Generic[Held]):
    """One thing that is in force, and who said it: an argument, a variable of the environment, or nobody."""

    name: str
    value: Held
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All that is in force: a chain of devices to try, or by what to pick from those that are here."""

    device: Setting[str | tuple[str, ...]]  # a name, or a chain
    allow: Setting[tuple[str, ...] | None]
    deny: Setting[tuple[str, ...]]
    prefer: Setting[tuple[str, ...]]
    pick: Setting[str]
    runs: Setting[int]

    @property
    def chain(self) -> tuple[str, ...] | None:
        """The devices that are named; None where one is to be picked."""
        value = self.device.value
        names = (value,) if isinstance(value, str) else value
        return None if names == (AUTO,) else names

    @property
    def option(self) -> DeviceOption:
        """What a caller said, without the environment's part, so that it can be said again."""
        value = self.device.value
        if self.device.origin == ARGUMENT and value != AUTO:
            return value
        said = {setting.name: setting.value for setting in self if setting.origin == ARGUMENT}
        said.pop("device", None)
        return DevicePolicy(**said) if said else AUTO

    def __iter__(self) -> Iterator[Setting[Any]]:
        yield from (self.device, self.allow, self.deny, self.prefer, self.pick, self.runs)


@dataclass(frozen=True, slots=True)
class Route:
    """The devices that are here and may serve, in order, and how the first of them is to be picked.

    `pick` is "named" for a single device, "chain" for several that were given in order, or one of PICKS; the first
    `preferred` devices come before the others whatever is picked. `absent` are those that were named and are not here.
    """

    devices: tuple[str, ...]
    pick: str
    preferred: int
    runs: int
    absent: tuple[Attempt, ...]
    settings: Settings
    said: str = ""  # why the first device is the first, where that is not plain from the rest
    ranking: Ranking | None = None  # that put the devices into this order

    @property
    def is_detour(self) -> bool:
        """Whether somebody asked for another device first, which is not here."""
        chain = self.settings.chain
        return bool(self.absent) and chain is not None and chain[0] == self.absent[0].device

    @property
    def reason(self) -> str:
        """Why the first device is the first."""
        if self.said:
            return self.said
        if self.pick == "named":
            return f"named by {self.settings.device.origin}"
        if self.pick == "chain":
            return "the first of the chain that is here"
        return "the only one that is here" if len(self.devices) == 1 else f"the first by {self.pick}"


def in_force(device: DeviceOption = AUTO, variables: Mapping[str, str] | None = None) -> Settings:
    """What holds for a model that is loaded with this `device`; DeviceError where something makes no sense."""
    policy = device if isinstance(device, DevicePolicy) else DevicePolicy()
    if isinstance(device, DevicePolicy) or (isinstance(device, str) and device == AUTO):
        named = _named_by_environment(variables)
    else:
        named = Setting("device", device if isinstance(device, str) else _names(device, "device"), ARGUMENT)
    if isinstance(device, DevicePolicy) and device != DevicePolicy() and named.origin != DEFAULT:
        named = Setting("device", AUTO, ARGUMENT)  # who states a policy wants a choice
    pick = _setting("pick", policy.pick, environment.text_of(environment.PICK, variables), environment.PICK, "cost")
    if pick.origin == environment.PICK.name:
        _check_pick(pick.value, environment.PICK.name)
    allowed = environment.listed(environment.ALLOWED, variables)
    denied = environment.listed(environment.DENIED, variables)
    return Settings(
        named,
        _setting("allow", policy.allow, allowed, environment.ALLOWED, None),
        _setting("deny", policy.deny, denied, environment.DENIED, ()),
        _setting("prefer", policy.prefer, None, None, ()),
        pick,
        _setting("runs", policy.runs, None, None, RUNS),
    )


def is_open(device: DeviceOption) -> bool:
    """Whether nobody said which devices a model may run on: neither the caller nor the environment."""
    settings = in_force(device)
    return settings.device == Setting("device", AUTO, DEFAULT) and settings.allow.value is None


def route(device: DeviceOption = AUTO) -> Route:
    """The devices to try, in order; a DeviceError where there is none."""
    settings = in_force(device)
    chain = settings.chain
    if chain is not None:
        if settings.device.origin != ARGUMENT:
            chain = _without_denied(chain, settings)
        if len(chain) == 1:
            return Route((choose(chain[0]).name,), "named", 0, settings.runs.value, (), settings)
        found, absent = _present(chain)
        return Route(_some(found, absent), "chain", 0, settings.runs.value, absent, settings)
    if settings.allow.value is not None:
        found, absent = _present(settings.allow.value)
    else:
        found, absent = [device.name for device in automatic()], ()
    denied, prefer = settings.deny.value, settings.prefer.value
    found = [name for name in found if not _matches(name, denied)]
    preferred = list(dict.fromkeys(name for wanted in prefer for name in found if _matches(name, (wanted,))))
    ordered = [*preferred, *(name for name in found if name not in preferred)]
    if not ordered and not absent:
        said = settings.deny.origin
        raise DeviceError(f"no device is left: {', '.join(denied)} is denied by {said}", hint="see weft.devices()")
    pick, runs = settings.pick.value, settings.runs.value
    return Route(_some(ordered, absent), pick, len(preferred), runs, absent, settings)


def _named_by_environment(variables: Mapping[str, str] | None) -> Setting[str | tuple[str, ...]]:
    name = environment.text_of(environment.DEVICE, variables)
    chain = environment.listed(environment.CHAIN, variables)
    if name is not None and chain is not None:
        problem = f"{environment.DEVICE.name} and {environment.CHAIN.name} are both set"
        raise DeviceError(problem, hint="set one of them")
    if chain is not None:
        return Setting("device", chain, environment.CHAIN.name)
    return Setting("device", AUTO, DEFAULT) if name is None else Setting("device", name, environment.DEVICE.name)


def _setting(name: str, given: Any, set_to: Any, variable: Variable | None, usual: Any) -> Setting[Any]:
    if given is not None:
        return Setting(name, given, ARGUMENT)
    if set_to is not None and variable is not None:
        return Setting(name, set_to, variable.name)
    return Setting(name, usual, DEFAULT)


def _names(given: Any, option: str) -> tuple[str, ...]:
    """One name or several, as several."""
    if isinstance(given, str):
        return (given,)
    try:
        names = tuple(given)
    except Exception:  # whatever comes of going through something that is no list
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        hint = 'a device is chosen by its name, for instance device="cpu"; see weft.devices()'
        raise DeviceError(f"{option} must be a name or a list of names, not {shown(given)}", hint=hint)
    if not names and option != "deny":
        raise DeviceError(f"{option} names no device", hint="see weft.devices()")
    return names


def _check_pick(pick: object, said: str) -> None:
    if pick not in PICKS:
        raise DeviceError(f"{said} must be one of {', '.join(PICKS)}, not {shown(pick)}")


def _present(names: Sequence[str]) -> tuple[list[str], tuple[Attempt, ...]]:
    """Those of the named devices that are here, each once, and why the others are not."""
    found: dict[str, None] = {}
    absent: list[Attempt] = []
    for name in names:
        try:
            found.update(dict.fromkeys([d.name for d in automatic()] if name == AUTO else [choose(name).name]))
        except DeviceError as error:
            absent.append(Attempt(name, "finding", error.problem))
    return list(found), tuple(absent)


def _some(found: Sequence[str], absent: Sequence[Attempt]) -> tuple[str, ...]:
    if not found:
        raise DeviceFallbackError(absent)
    return tuple(found)


def _matches(device: str, names: Sequence[str]) -> bool:
    """Whether a device is one of those that names or kinds mean."""
    kind = device.partition(":")[0]
    return any(device == name or kind == name or _means(name, device) for name in names)


def _means(name: str, device: str) -> bool:
    try:
        return name.partition(":")[0] == device.partition(":")[0] and choose(name).name == device
    except DeviceError:
        return False


def _without_denied(chain: tuple[str, ...], settings: Settings) -> tuple[str, ...]:
    left = tuple(name for name in chain if not _matches(name, settings.deny.value))
    if not left:
        problem = f"{settings.device.origin} names {', '.join(chain)}, which {settings.deny.origin} denies"
        raise DeviceError(problem, hint="change one of the two")
    return left
