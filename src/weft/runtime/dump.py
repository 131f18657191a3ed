"""Write the stages of a compilation as text files: numbered in order, kernels in a folder beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.backends.naming import name_kernels, replace_kernels
from weft.errors import InputError, WeftError

if TYPE_CHECKING:
    from weft.backends.device import CompilingDriver
    from weft.ir.work import Section
    from weft.plan.program import ProgramPlan


class StageDump:
    """Writes stages into a folder; without a folder it does nothing and builds no texts."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._number = 0

    def restart(self) -> None:
        """Number stages from 0 again, for another program."""
        self._number = 0

    def stage(self, name: str, text: Callable[[], object]) -> None:
        """Write the next stage."""
        self.file(f"{self._number:02}-{name}.txt", text)
        self._number += 1

    def file(self, path: str, text: Callable[[], object]) -> None:
        """Write a file below the folder."""
        if self.folder is None:
            return
        file = self.folder / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{str(text()).rstrip()}\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"the dump folder {self.folder} cannot be written: {reason}") from error

    def kernels(self, sections: Sequence[Section], driver: CompilingDriver) -> None:
        """Write sections with their tasks, and every kernel with its code in each language that it is lowered to."""
        if self.folder is None:
            return
        from weft.ir.printing import format_sections

        kernels = name_kernels(sections)
        self.stage("sections", lambda: format_sections(replace_kernels(sections, kernels)))
        for name, kernel in {kernel.name: kernel for kernel in kernels.values()}.items():
            self.file(f"kernels/{name}.txt", lambda: kernel)  # noqa: B023 (called at once)
            for listing in driver.listings(kernel):
                self.file(f"kernels/{name}{listing.suffix}", lambda: listing.text)  # noqa: B023

    def plan(self, make_plan: Callable[[], tuple[ProgramPlan, Mapping[str, int]]]) -> None:
        """Write the memory plan for typical sizes."""
        if self.folder is None:
            return
        from weft.plan.printing import format_plan

        try:
            text = format_plan(*make_plan())
        except WeftError as error:
            text = f"no plan for typical sizes: {error.problem}"
        self.stage("plan", lambda: text)
