"""Find the tests that a change can affect: `python tests/affected.py [BASE]`, what `scripts/test --changed` runs.

In comes what git says has changed since BASE (by default where this branch left main) and in the working tree; out, on
stdout, go the files of tests and the conformance runs whose imports lead to a changed module, and on stderr why.
Imports are read, not run: those in functions count, and so do names of modules in strings (what is imported late, or by
a program that a test starts), but not those of a package of which only another module is wanted. Where imports lead to
more than a test can reach, what it says about itself counts:

- a test that names its devices, or whose models run on the reference (conftest.py says which), does not reach the
  kernels and backends of other devices, unless it imports them itself;
- a test reaches the ops that it names; all of them where it takes models from elsewhere.

A file that is no module counts as a change of the modules that name it. A file that no module names, or that all tests
share, affects everything; pages for people affect nothing, except for README and docs/, whose code tests/docs runs.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ("pyproject.toml", "tests/conftest.py", "src/weft/__init__.py")
FOR_PEOPLE = (".md", "LICENSE", ".gitignore")
PAGES = ("README.md", "docs/", "mkdocs.yml", "scripts/site/")  # which the tests of that folder run and build:
PAGE_TESTS = "tests/docs/"
BY_HAND = ("scripts/", ".ci/", "bench/")  # what no test names there, no test runs
DEVICE = re.compile(r"(cpu|webgpu)(:\d+)?")
ROOMS = {
    "cpu": ("weft.backends.cpu", "weft.backends.llvm", "weft.kernels.vector"),
    "webgpu": ("weft.backends.webgpu", "weft.kernels.threads"),
}
"""Device -> what only its models are built of and run by."""
COMPILED = ("weft.fuse", "weft.cost", "weft.kernels", "weft.plan")
"""What models of none but the reference go without."""
ANY_MODEL = ("models", "attack", "weft.compat", "weft.backend", "weft.cli", "weft.__main__")
"""Who imports from these meets models with any op, on any device that it does not rule out."""
CONFORMANCE = {"reference": (), "cpu": ("cpu",), "webgpu": ("webgpu",)}
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
PACKAGE = "/"  # after the name of one that is imported for what is in it
IMPORTED = re.compile(r"\b(?:from|import)\s+([A-Za-z_][\w.]*)")


@dataclass(frozen=True)
class Module:
    name: str
    path: str  # below the root
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def first(self) -> list[ast.AST]:
        """Statements that run on import, except for those of type checkers."""
        return list(_nodes(self.tree, functions=False))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(_nodes(self.tree, functions=True))

    @property
    def late(self) -> Iterator[ast.AST]:
        """Statements that run on a call."""
        first = set(self.first)
        return (node for node in self.nodes if node not in first)

    @cached_property
    def strings(self) -> list[str]:
        documentation = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        return [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
        ]

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/") and Path(self.path).name.startswith("test_")


def _nodes(tree: ast.AST, functions: bool) -> Iterator[ast.AST]:
    yield tree
    for node in ast.iter_child_nodes(tree):
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not typing and (functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield from _nodes(node, functions)


@dataclass(frozen=True)
class Graph:
    modules: Mapping[str, Module]
    on_reference: Collection[str]  # folders and files of tests
    edges: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, module in self.modules.items():
            late = {*self._imported(module.late), *self._named(module)}
            self.edges[f"{name}{PACKAGE}"] = set(self._imported(module.first)) - {name}
            self.edges[name] = (self.edges[f"{name}{PACKAGE}"] | late) - {name}

    def _imported(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            match node:
                case ast.Import(names=aliases):
                    for alias in aliases:
                        yield from self._with_packages(alias.name)
                case ast.ImportFrom(module=str(source), level=0, names=aliases):
                    modules = [f"{source}.{alias.name}" for alias in aliases]
                    if not all(name in self.modules for name in modules):
                        yield from self._with_packages(source)
                    for name in modules:
                        yield from self._with_packages(name)
                case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[what, *_]):
                    for start in _starts(what):
                        yield from (name for name in self.modules if name.rpartition(".")[0] == start)

    def _named(self, module: Module) -> Iterator[str]:
        """In strings: in those of tests, which may be programs or command lines, anywhere."""
        for text in module.strings:
            if module.path.startswith("src/"):
                names = [text]
            else:
                names = [*DOTTED.findall(text), *IMPORTED.findall(text)]
            for name in names:
                if "." in name or name != text:
                    yield from self._with_packages(name)
        if module.path.startswith("tests/"):
            for one, other in zip(module.strings, module.strings[1:]):
                if one == "-m" and other == "weft":
                    yield "weft.__main__"

    def _with_packages(self, name: str) -> Iterator[str]:
        """Return a module and its packages."""
        if name in self.modules:
            yield name
            parts = name.split(".")
            for length in range(1, len(parts)):
                if (package := ".".join(parts[:length])) in self.modules:
                    yield f"{package}{PACKAGE}"

    def module(self, name: str) -> Module:
        return self.modules[name.rstrip(PACKAGE)]

    # -- tests -------------------------------------------------------------------------------------------------------

    def own(self, test: str) -> set[str]:
        """Return a test and the test modules that it imports."""
        modules, waiting = {test}, deque([test])
        while waiting:
            for name in self.edges[waiting.popleft()]:
                if name not in modules and self.module(name).path.startswith("tests/"):
                    modules.add(name)
                    waiting.append(name)
        return modules

    def reach(self, test: str) -> dict[str, str | None]:
        """Map every module that a test can reach to the one that imports it."""
        own = self.own(test)
        direct = {name for module in own for name in self.edges[module]}
        barred = [room for room in self._barred_rooms(test, own) if not any(_is_in(name, (room,)) for name in direct)]
        families = self._unused_families(own)
        return self._walk(
            [test], lambda name: name not in direct and (_is_in(name, barred) or name.rstrip(PACKAGE) in families)
        )

    def conformance_reach(self, devices: Collection[str]) -> dict[str, str | None]:
        barred = _barred(devices)
        starts = [name for name in ("weft", "weft.compat.conformance.worker") if name in self.modules]
        return self._walk(starts, lambda name: _is_in(name, barred))

    def _walk(self, starts: list[str], is_barred: Callable[[str], bool]) -> dict[str, str | None]:
        reached: dict[str, str | None] = dict.fromkeys(starts)
        waiting = deque(starts)
        while waiting:
            at = waiting.popleft()
            for name in sorted(self.edges[at]):
                if name not in reached and not is_barred(name):
                    reached[name] = at
                    waiting.append(name)
        return reached

    def _barred_rooms(self, test: str, own: Collection[str]) -> Collection[str]:
        inside = Path(self.modules[test].path).relative_to("tests")
        on_reference = inside.parts[0] in self.on_reference or inside.stem in self.on_reference
        named = {
            match[1]
            for name in own
            for text in self.module(name).strings
            if (match := DEVICE.fullmatch(text)) is not None
        }
        plain = any(_loads_anywhere(self.module(name)) for name in own)
        program = any(_is_in(name, ("weft.cli", "weft.__main__")) for module in own for name in self.edges[module])
        if program or (plain and not on_reference) or not (named or on_reference):
            return ()
        return _barred(named)

    def _unused_families(self, own: Collection[str]) -> set[str]:
        """Return modules of ops that define none of the ops that a test names."""
        if any(_is_in(name, ANY_MODEL) for module in own for name in (module, *self.edges[module])):
            return set()
        words = {word for name in own for text in self.module(name).strings for word in re.findall(r"\w+", text)}
        defined = {name: set(_ops(module)) for name, module in self.modules.items() if _is_in(name, ("weft.opset",))}
        loads = any("weft" in self.edges[module] for module in own)
        if loads and not any(ops & words for ops in defined.values()):
            return set()
        return {name for name, ops in defined.items() if ops and not ops & words}


@dataclass(frozen=True)
class Affected:
    reasons: dict[str, str]  # a file of tests, or a conformance run -> why
    left_out: int


def read_graph(root: Path) -> Graph:
    modules = {}
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = Module(name, path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    return Graph(modules, _on_reference(root / "tests" / "conftest.py"))


def affected(graph: Graph, changed: Collection[str]) -> Affected:
    """Return the tests that changed files (paths below the root) can affect."""
    tests = [module for module in graph.modules.values() if module.is_test]
    everything = {module.path: "" for module in tests} | {f"conformance {device}": "" for device in CONFORMANCE}
    hit: dict[str, str] = {}  # module -> the changed file
    by_path = {module.path: name for name, module in graph.modules.items()}
    for path in sorted(changed):
        if path in by_path and path not in SHARED:
            hit[by_path[path]] = path
        elif path.startswith(PAGES):
            hit |= {module.name: path for module in tests if _reads_page(module, path)}
        elif not path.endswith(FOR_PEOPLE):
            users = {} if path in SHARED else _users(graph, path)
            if not users and not path.startswith(BY_HAND):
                why = "all tests share it" if path in SHARED else "no module names it"
                return Affected(dict.fromkeys(everything, f"{path}: {why}"), 0)
            hit |= users
    reasons = {}
    for module in tests:
        reached = graph.reach(module.name)
        if hits := [name for name in reached if name.rstrip(PACKAGE) in hit]:
            reasons[module.path] = _chain(reached, hits[0], hit)
    for device, devices in CONFORMANCE.items():
        reached = graph.conformance_reach(devices)
        if hits := [name for name in reached if name.rstrip(PACKAGE) in hit]:
            reasons[f"conformance {device}"] = _chain(reached, hits[0], hit)
    return Affected(reasons, len(everything) - len(reasons))


def changed_files(root: Path, base: str | None) -> tuple[str, list[str]]:
    """Return the base commit, and the files changed since, including the working tree."""
    since = base or _git(root, "merge-base", "HEAD", "main")[0]
    names = _git(root, "diff", "--name-only", "--no-renames", since)
    return since, sorted({*names, *_git(root, "ls-files", "--others", "--exclude-standard")})


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"affected: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def _reads_page(test: Module, path: str) -> bool:
    return test.path.startswith(PAGE_TESTS) or Path(path).name in test.strings


def _users(graph: Graph, path: str) -> dict[str, str]:
    """Return the nearest modules that name a file or its folder."""
    file = Path(path)
    if file.parts[0] == "scripts":
        both = {"scripts", file.name}
        return {
            name: path
            for name, module in graph.modules.items()
            if both <= set(module.strings) or any(path in text for text in module.strings)
        }
    names = [file.name, *(part for part in reversed(file.parent.parts) if part not in ("src", "weft", "tests"))]
    words = [re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in names]
    for folder in file.parents:
        near = [(name, module) for name, module in graph.modules.items() if folder in Path(module.path).parents]
        for word in words:
            if users := {name: path for name, module in near if any(map(word.search, module.strings))}:
                return users
    return {}


def _chain(reached: Mapping[str, str | None], name: str, hit: Mapping[str, str]) -> str:
    steps = []
    at: str | None = name
    while at is not None:
        steps.append(at)
        at = reached[at]
    if len(steps) == 1:
        return f"{hit[name.rstrip(PACKAGE)]} changed"
    return " -> ".join(
        [*reversed(steps[:-1])][:2] + (["…"] if len(steps) > 4 else []) + ([name] if len(steps) > 3 else [])
    )


def _barred(devices: Collection[str]) -> tuple[str, ...]:
    rooms = tuple(room for device, rooms in ROOMS.items() if device not in devices for room in rooms)
    return rooms if devices else (*COMPILED, *rooms)


def _is_in(name: str, packages: Collection[str]) -> bool:
    name = name.rstrip(PACKAGE)
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _starts(what: ast.expr) -> Iterator[str]:
    """Yield the packages that computed module names start with."""
    for node in ast.walk(what):
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]) if start.endswith("."):
                yield start.removesuffix(".")


def _loads_anywhere(module: Module) -> bool:
    """Whether a module loads a model without naming a device."""
    with_device = {
        id(node.func)
        for node in module.nodes
        if isinstance(node, ast.Call) and any(keyword.arg == "device" for keyword in node.keywords)
    }
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "load"
        and isinstance(node.value, ast.Name)
        and node.value.id == "weft"
        and id(node) not in with_device
        for node in module.nodes
    )


def _ops(module: Module) -> Iterator[str]:
    """Yield the names of the ops that a module defines."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and decorator.args:
                    for argument in decorator.args:
                        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                            yield argument.value


def _on_reference(conftest: Path) -> tuple[str, ...]:
    """Read `ON_REFERENCE` of conftest.py."""
    if conftest.exists():
        for node in ast.parse(conftest.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="ON_REFERENCE")], value=value):
                    return tuple(ast.literal_eval(value))
    return ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="a commit (default: where this branch left main)")
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    since, changed = changed_files(arguments.root, arguments.base)
    result = affected(read_graph(arguments.root), changed)
    print(f"{len(changed)} files changed since {since[:12]}", file=sys.stderr)
    for name, reason in sorted(result.reasons.items()):
        print(f"  {name}: {reason}", file=sys.stderr)
        print(name)
    print(f"{len(result.reasons)} to run, {result.left_out} left out", file=sys.stderr)


if __name__ == "__main__":
    main()
