"""`model.report()`: where a model runs and why, which devices failed, and what each of them computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from weft.errors import Attempt
from weft.ir.compiled import CompiledProgram
from weft.ir.narrowed_products import NarrowedProduct
from weft.ir.work import KernelCounts, count_kernels
from weft.quantities import format_plural, join_few, shorten
from weft.records import dataclass
from weft.runtime.device_history import Service
from weft.runtime.explain import HostStep
from weft.runtime.options import USUAL_PRECISION
from weft.runtime.policy import Route, Setting
from weft.runtime.ranking import Ranked
from weft.runtime.session_pool import SessionPool
from weft.tables import MAX_CELL, ShownAsTables, Table

MOST_STEPS = 40  # host steps that are listed


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What was compiled for a device.

    `kernels` counts distinct kernels, `launches` their launches in a run, bodies of control flow once; `host_steps` run
    in Python; `narrowed` are the matrix products that round their operands, as the `precision` allows.
    """

    device: str
    kernels: int
    host_steps: tuple[HostStep, ...]
    precision: str = USUAL_PRECISION
    narrowed: tuple[NarrowedProduct, ...] = ()
    launches: int = 0

    @property
    def summary(self) -> str:
        """The number of kernels, launches and host steps."""
        counts = KernelCounts(self.kernels, self.launches)
        return f"{counts}, {format_plural(len(self.host_steps), 'step')} on the host"

    @property
    def rounding(self) -> str:
        """The narrowed products, in a sentence."""
        return rounding_text(self.precision, self.narrowed)


@dataclass(frozen=True, slots=True)
class DeviceReport(ShownAsTables):
    """Where a model runs and why, which devices served or failed before, and the settings that decided."""

    file: str
    device: str  # that runs it now
    pick: str  # how it was chosen
    candidates: tuple[str, ...]  # in the order in which they are tried
    ranking: tuple[Ranked, ...]  # that decided the order: seconds of a run on each, predicted or measured
    services: tuple[Service, ...]  # devices that served, in order
    attempts: tuple[Attempt, ...]  # devices that failed, in order
    shares: tuple[DeviceShare, ...]  # of the devices that it is compiled for
    settings: tuple[Setting[object], ...]  # at the time of the choice, with their origins

    def __repr__(self) -> str:
        work = [f"{share.device}: {format_plural(share.kernels, 'kernel')}" for share in self.shares]
        failed = f", {format_plural(len(self.attempts), 'attempt')} failed" * bool(self.attempts)
        summary = f"{shorten(self.file)} on {self.device}, picked: {self.pick}"
        return f"<weft.DeviceReport {summary}{failed}{'; ' * bool(work)}{join_few(work)}>"

    def _tables(self) -> Iterator[Table]:
        rows: list[tuple[str, str, str]] = [(self.device, "serves", f"picked: {self.pick}")]
        rows += [(service.device, "served", service.reason) for service in self.services]
        rows += [(ranked.device, f"by {self.pick}", ranked.reason) for ranked in self.ranking]
        rows += [(attempt.device, f"failed in {attempt.stage}", attempt.reason) for attempt in self.attempts]
        for share in self.shares:
            rows.append((share.device, "compiled", share.summary))
            if share.precision != USUAL_PRECISION or share.narrowed:
                rows.append((share.device, "precision", share.rounding))
        title = f"{shorten(self.file, MAX_CELL)} runs on {self.device}"
        yield Table(rows, ("device", "", "details"), title=title)
        steps = [(step.node, step.step, step.reason) for share in self.shares for step in share.host_steps]
        if steps:
            yield Table(steps, ("node on the host", "step", "reason"))

    def __str__(self) -> str:
        lines = [f"{self.file} runs on {self.device} (picked: {self.pick}, of {', '.join(self.candidates)})"]
        lines += [f"  by {self.pick}, {ranked.device}: {ranked.reason}" for ranked in self.ranking]
        lines += [f"  served by {service.device}: {service.reason}" for service in self.services]
        lines += [f"  {attempt}" for attempt in self.attempts]
        for share in self.shares:
            lines.append(f"  on {share.device}: {share.summary}")
            lines += [f"    {share.rounding}"] if share.precision != USUAL_PRECISION or share.narrowed else []
            lines += [f"    {step.node}: {step.step}: {step.reason}" for step in share.host_steps[:MOST_STEPS]]
            left_out = len(share.host_steps) - MOST_STEPS
            lines += [f"    … and {format_plural(left_out, 'more step')} on the host"] * (left_out > 0)
        return "\n".join(lines)


def describe_devices(file: str, device: str, route: Route, pool: SessionPool) -> DeviceReport:
    """Make the report of a model."""
    shares = []
    for name, session in list(pool.sessions.items()):
        program = session.whole.program
        counts = count_kernels(program.sections) if isinstance(program, CompiledProgram) else KernelCounts(0, 0)
        precision, narrowed = session.pipeline.precision, session.narrowed()
        shares.append(
            DeviceShare(name, counts.kernels, session.explain(), precision, narrowed, launches=counts.launches)
        )
    history = pool.history
    return DeviceReport(
        file,
        device,
        route.pick,
        route.devices,
        () if route.ranking is None else route.ranking.entries,
        tuple(history.services),
        tuple(history.attempts),
        tuple(shares),
        tuple(route.settings),
    )


def rounding_text(precision: str, narrowed: Sequence[NarrowedProduct]) -> str:
    """Say which products round their operands, and to what."""
    if not narrowed:
        return f"precision {precision}: no product was narrowed"
    counts = Counter(product.operands for product in narrowed)
    summary = " and ".join(f"{count} product{'s' * (count > 1)} narrowed to {kind}" for kind, count in counts.items())
    return f"precision {precision}: {summary}"
