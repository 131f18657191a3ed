"""A sandbox for chat templates, which come with models and are not trusted.

It provides what transformers provides to templates. Jinja's sandbox keeps templates from Python's internals; a budget
for each rendering bounds time and memory. Loops, calls and every operation whose result can be large spend from it
before they run.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from string import Formatter
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.visitor import NodeTransformer

BUDGET = 1 << 26
"""Characters that a rendering may produce in all, intermediate texts included."""
STEP = 64
"""The price of an iteration, a call or an element of a list."""
MAX_BITS = 4096
"""The longest integer."""
MAX_WIDTH = 10_000
"""The largest width, indentation or number of digits."""

PERCENT_WIDTH = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%]*?(?:\*|\d{5})")
FORBIDDEN_METHODS = frozenset({"encode", "to_bytes", "translate"})
PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
WIDTH_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "tojson", "wordwrap"})
DEEP_FILTERS = frozenset({"escape", "e", "forceescape", "join", "pprint", "string", "tojson", "xmlattr"})
EXCLUDED_FILTERS = ("urlize",)


class TemplateLimitError(SecurityError):
    """A template needs more time or memory than it may have."""


class MessagesError(TemplateRuntimeError):
    """A template rejects its messages (`raise_exception`)."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a budget for each rendering."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=self._charge_output,
        )
        self._rendering = threading.local()
        self.globals.update(
            raise_exception=raise_exception, strftime_now=strftime_now, dict=make_dict, range=self._limited_range
        )
        del self.globals["lipsum"]
        self.filters["tojson"] = to_json
        for name in EXCLUDED_FILTERS:
            del self.filters[name]
        self.filters = {name: self._limit_filter(name, function) for name, function in self.filters.items()}

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Give this thread a new budget for compiling or rendering a template."""
        self._rendering.budget = BUDGET
        try:
            yield
        finally:
            self._rendering.budget = 0

    def render(self, template: Template, variables: Mapping[str, Any]) -> str:
        """Render a template within the budget."""
        with self.limit():
            return template.render(variables)

    def spend(self, cost: int) -> bool:
        """Spend from this thread's budget; return True, so that a condition can call it."""
        self._rendering.budget -= cost
        if self._rendering.budget < 0:
            raise TemplateLimitError(f"it needs more than {BUDGET} characters or {BUDGET // STEP} steps")
        return True

    def spend_text(self, value: object) -> None:
        """Spend the size of a value as text, with all that it contains."""
        stack = [value]
        while stack:
            entry = stack.pop()
            if isinstance(entry, str):
                self.spend(len(entry) + 1)
                continue
            self.spend(STEP)
            if isinstance(entry, dict):
                stack.extend(entry)
                stack.extend(entry.values())
            elif isinstance(entry, (list, tuple, set, frozenset)):
                stack.extend(entry)

    def join_texts(self, *values: object) -> str:
        """Compute the operator `~`."""
        for value in values:
            self.spend_text(value)
        return "".join(map(str, values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result can be larger than its operands."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise TemplateLimitError(f"it computes an integer of more than {MAX_BITS} bits")
        elif operator == "%" and isinstance(left, str):
            _check_percent_format(left)
            self.spend_text([left, right])
        elif operator in ("+", "*"):
            self.spend(_repeated_length(left, right) if operator == "*" else _length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as in jinja2
        """Call a function or a method, after its price is paid."""
        method = getattr(__obj, "__wrapped__", __obj)
        name, owner = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        if owner is __self:  # methods of this class, which take no keywords; jinja2 adds some
            return __obj(*args)
        if isinstance(owner, (str, bytes, int)):
            if name in FORBIDDEN_METHODS:
                raise SecurityError(f"the method {name} is not available")
            args = __self._check_text_method(str(owner), name, args, kwargs)
        __self.spend(STEP + (_length(owner) if isinstance(owner, (str, list, dict, tuple)) else 0))
        return super().call(__context, __obj, *args, **kwargs)

    def _check_text_method(
        self, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Spend what the method of a text costs; return its arguments, iterators as lists."""
        everything = (*args, *kwargs.values())
        if name in PADDING_METHODS:
            _check_widths(everything)
        elif name == "expandtabs":
            _check_widths(everything)
            self.spend(text.count("\t") * max((size for size in everything if isinstance(size, int)), default=8))
        elif name == "replace":
            self.spend(_replaced_length(text, args))
        elif name == "join" and args:
            parts = list(args[0])
            self.spend_text(parts)
            self.spend(len(text) * len(parts))
            return (parts, *args[1:])
        elif name in ("format", "format_map"):
            for _, _, spec, _ in Formatter().parse(text):
                if spec and ("{" in spec or re.search(r"\d{5}", spec)):
                    raise TemplateLimitError("it formats with a computed or very large width")
            self.spend_text(list(everything))
        return args

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _InsertPrices(self).visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def _limit_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter so that it spends before it runs."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context, or the environment

        @wraps(function)
        def limited_filter(*args: Any, **kwargs: Any) -> Any:
            passed, values = list(args[:first]), list(args[first:])
            options = (*values[1:], *kwargs.values())
            if name in WIDTH_FILTERS:
                _check_widths(options)
            if name in DEEP_FILTERS:
                if values and isinstance(values[0], Iterator):
                    values[0] = list(values[0])
                self.spend_text(values)
                if name == "join" and values and isinstance(values[0], (list, tuple)):
                    self.spend(len(values[0]) * sum(_length(option) for option in options))
                elif name == "tojson" and kwargs.get("indent"):
                    self.spend_text(values * 64)  # indentation grows with the depth
            elif name == "replace" and values and isinstance(values[0], str):
                self.spend(_replaced_length(values[0], options))
            elif name == "indent" and values and isinstance(values[0], str):
                widths = (option if isinstance(option, int) else _length(option) for option in options)
                self.spend((values[0].count("\n") + 1) * max(widths, default=4))
            elif name == "format" and values:
                _check_percent_format(str(values[0]))
                self.spend_text(values)
            self.spend(STEP + sum(_length(value) for value in values))
            return function(*passed, *values, **kwargs)

        return limited_filter

    def _limited_range(self, *bounds: int) -> range:
        try:
            numbers = safe_range(*bounds)
        except OverflowError as error:
            raise TemplateLimitError(str(error)) from error
        self.spend(len(numbers))
        return numbers

    def _charge_output(self, value: Any) -> Any:
        self.spend_text(value)
        return value


class _InsertPrices(NodeTransformer):
    """Spend in each iteration of loops and each call of macros, and replace the operator `~` by a method."""

    def __init__(self, environment: TemplateEnvironment) -> None:
        self.environment = environment

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - named for the node
        self.generic_visit(node)
        return self._call("join_texts", list(node.nodes), node)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self._insert_price(node)
        if node.test is not None:
            node.test = nodes.And(self._call("spend", [nodes.Const(STEP)], node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._insert_price(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._insert_price(node)

    def _insert_price(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        """Spend for the constant text of a body whenever it runs."""
        self.generic_visit(node)
        texts = [data.data for data in node.find_all(nodes.TemplateData)]
        texts += [constant.value for constant in node.find_all(nodes.Const) if isinstance(constant.value, str)]
        price = nodes.Const(STEP + sum(map(len, texts)))
        node.body.insert(0, nodes.ExprStmt(self._call("spend", [price], node), lineno=node.lineno))
        return node

    def _call(self, method: str, arguments: list[nodes.Expr], place: nodes.Node) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
        call.set_lineno(place.lineno)
        return call


class GenerationTag(Extension):
    """`{% generation %}` marks the answers of the assistant for training; they render like other text."""

    tags = {"generation"}  # noqa: RUF012 - declared by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Macro) -> str:
        return caller()


def raise_exception(message: object) -> NoReturn:
    """Reject the messages."""
    raise MessagesError(str(message)[:1000])


def strftime_now(format: str) -> str:
    """Format the current time."""
    if len(format) > 1000 or re.search(r"%[^a-zA-Z%]*\d{3}", format):
        raise TemplateLimitError("it formats the time with a very large width")
    return datetime.now().strftime(format)


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Create a dict; the class itself has methods that templates do not need."""
    return dict(*args, **kwargs)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without escaping HTML, with the options that transformers offers."""
    pair = None if separators is None else (separators[0], separators[1])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


def _length(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 1


def _repeated_length(left: object, right: object) -> int:
    count, text = (left, right) if isinstance(left, int) else (right, left)
    return max(count, 1) * _length(text) if isinstance(count, int) else 1


def _replaced_length(text: str, arguments: Sequence[Any]) -> int:
    if len(arguments) < 2 or not isinstance(arguments[0], str):
        return len(text)
    return len(text) + text.count(arguments[0]) * _length(arguments[1])


def _check_widths(values: Sequence[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
        raise TemplateLimitError(f"it pads or indents by more than {MAX_WIDTH} characters")


def _check_percent_format(text: str) -> None:
    if PERCENT_WIDTH.search(text):
        raise TemplateLimitError("it formats with a computed or very large width")
