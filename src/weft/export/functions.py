"""Functions of LLVM's language in the making."""

from __future__ import annotations

from itertools import count


class FunctionText:
    """The lines of a function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = count()

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def name(self, hint: str = "v") -> str:
        return f"%{hint}{next(self._names)}"

    def assign(self, text: str) -> str:
        name = self.name()
        self.emit(f"{name} = {text}")
        return name

    def label(self, hint: str) -> str:
        return f"{hint}{next(self._names)}"

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def go(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def choose(self, condition: str, yes: str, no: str) -> None:
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")

    def fail_if(self, condition: str | None, error: int) -> None:
        """Leave with an error where a bit is set."""
        if condition is not None:
            self._leave_if(condition, str(error))

    def fail_with(self, error: str) -> None:
        """Leave with an error of another function, unless that is none."""
        self._leave_if(self.assign(f"icmp ne i32 {error}, 0"), error)

    def _leave_if(self, condition: str, error: str) -> None:
        leave, stay = self.label("leave"), self.label("stay")
        self.choose(condition, leave, stay)
        self.begin(leave)
        self.emit(f"ret i32 {error}")
        self.begin(stay)

    def definition(self, signature: str) -> str:
        return "\n".join((f"{signature} nounwind {{", "entry:", *self.lines, "}"))
