"""Build the text of LLVM functions."""

from __future__ import annotations

from itertools import count


class FunctionText:
    """The instructions of a function under construction."""

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

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")

    def fail_if(self, condition: str | None, error: int) -> None:
        """Return an error code if a bit is set."""
        if condition is not None:
            self._return_if(condition, str(error))

    def fail_with(self, error: str) -> None:
        """Return the error of another function, unless it is 0."""
        self._return_if(self.assign(f"icmp ne i32 {error}, 0"), error)

    def _return_if(self, condition: str, error: str) -> None:
        leave, stay = self.label("leave"), self.label("stay")
        self.branch(condition, leave, stay)
        self.start_block(leave)
        self.emit(f"ret i32 {error}")
        self.start_block(stay)

    def definition(self, signature: str) -> str:
        return "\n".join((f"{signature} nounwind {{", "entry:", *self.lines, "}"))
