"""Where a model runs and why, as data that prints: devices, what was tried, and what each of them does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from weft.errors import Attempt
from weft.ir.compiled import CompiledProgram
from weft.ir.narrowed import NarrowedProduct
from weft.ir.work import count_launches
from weft.quantities import counted, few, shortened
from weft.records import dataclass
from weft.runtime.attempts import Service
from weft.runtime.choice import Ranked
from weft.runtime.deployment import Deployment
from weft.runtime.explain import HostStep
from weft.runtime.options import USUAL_PRECISION
from weft.runtime.policy import Route, Setting
from weft.tables import LONGEST_CELL, ShownTable, Tabled

MOST_STEPS = 40  # that are listed


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What is compiled for a device.

    `kernels` are those that a run launches, bodies of control flow counted once; `host_steps` are left to Python, and
    `narrowed` are the products that round their operands, as far as the `precision` allows it.
    """

    device: str
    kernels: int
    host_steps: tuple[HostStep, ...]
    precision: str = USUAL_PRECISION
    narrowed: tuple[NarrowedProduct, ...] = ()

    @property
    def rounding(self) -> str:
        """Which products are narrowed, in a sentence."""
        return rounding_text(self.precision, self.narrowed)


@dataclass(frozen=True, slots=True)
class DeviceReport(Tabled):
    """Where a model runs, since when and why, what failed before, and what was in force when it was chosen."""

    file: str
    device: str  # that serves now
    pick: str  # how it was chosen
    candidates: tuple[str, ...]  # in the order in which they are tried
    ranking: tuple[Ranked, ...]  # what decided on that order: seconds of a run on each, predicted or measured
    services: tuple[Service, ...]  # who served, in order
    attempts: tuple[Attempt, ...]  # who failed, in order
    shares: tuple[DeviceShare, ...]  # of the devices that it is compiled for
    settings: tuple[Setting[object], ...]  # what was in force when it was chosen, and who said it

    def __repr__(self) -> str:
        work = [f"{share.device}: {counted(share.kernels, 'kernel')}" for share in self.shares]
        failed = f", {counted(len(self.attempts), 'attempt')} failed" * bool(self.attempts)
        said = f"{shortened(self.file)} on {self.device}, picked: {self.pick}"
        return f"<weft.DeviceReport {said}{failed}{'; ' * bool(work)}{few(work)}>"

    def _tables(self) -> Iterator[ShownTable]:
        """What `str` says, in columns."""
        rows: list[tuple[str, str, str]] = [(self.device, "serves", f"picked: {self.pick}")]
        rows += [(service.device, "served", service.reason) for service in self.services]
        rows += [(ranked.device, f"by {self.pick}", ranked.reason) for ranked in self.ranking]
        rows += [(attempt.device, f"failed in {attempt.stage}", attempt.reason) for attempt in self.attempts]
        for share in self.shares:
            told = f"{counted(share.kernels, 'kernel')}, {counted(len(share.host_steps), 'step')} on the host"
            rows.append((share.device, "compiled", told))
            if share.precision != USUAL_PRECISION or share.narrowed:
                rows.append((share.device, "precision", share.rounding))
        title = f"{shortened(self.file, LONGEST_CELL)} runs on {self.device}"
        yield ShownTable(rows, ("device", "", "why, and what"), title=title)
        steps = [(step.node, step.step, step.reason) for share in self.shares for step in share.host_steps]
        if steps:
            yield ShownTable(steps, ("node on the host", "step", "reason"))

    def __str__(self) -> str:
        lines = [f"{self.file} runs on {self.device} (picked: {self.pick}, of {', '.join(self.candidates)})"]
        lines += [f"  by {self.pick}, {ranked.device}: {ranked.reason}" for ranked in self.ranking]
        lines += [f"  served by {service.device}: {service.reason}" for service in self.services]
        lines += [f"  {attempt}" for attempt in self.attempts]
        for share in self.shares:
            lines.append(f"  on {share.device}: {share.kernels} kernels, {len(share.host_steps)} steps on the host")
            lines += [f"    {share.rounding}"] if share.precision != USUAL_PRECISION or share.narrowed else []
            lines += [f"    {step.node}: {step.step}: {step.reason}" for step in share.host_steps[:MOST_STEPS]]
            left_out = len(share.host_steps) - MOST_STEPS
            lines += [f"    … and {counted(left_out, 'more step')} on the host"] * (left_out > 0)
        return "\n".join(lines)


def describe_devices(file: str, device: str, way: Route, deployment: Deployment) -> DeviceReport:
    """The report on a model that is on these devices."""
    shares = []
    for name, session in list(deployment.sessions.items()):
        program = session.whole.program
        kernels = count_launches(program.sections) if isinstance(program, CompiledProgram) else 0
        shares.append(DeviceShare(name, kernels, session.explain(), session.compiler.precision, session.narrowed()))
    history = deployment.history
    return DeviceReport(
        file,
        device,
        way.pick,
        way.devices,
        () if way.ranking is None else way.ranking.entries,
        tuple(history.services),
        tuple(history.attempts),
        tuple(shares),
        tuple(way.settings),
    )


def rounding_text(precision: str, narrowed: Sequence[NarrowedProduct]) -> str:
    """Which products round their operands, and to what, in a sentence."""
    if not narrowed:
        return f"precision {precision}: no product was narrowed"
    counts = Counter(found.operands for found in narrowed)
    told = " and ".join(f"{count} product{'s' * (count > 1)} narrowed to {kind}" for kind, count in counts.items())
    return f"precision {precision}: {told}"
