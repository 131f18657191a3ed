"""`dataclass` for weft's own records: the same meaning as Python's, at a small part of the price of an import.

Python writes and compiles the methods of a data class when the class is made, which is most of what importing hundreds
of them costs. Here they are written when they are first called: a process pays for the records that it uses. Equality
is that of the fields' tuple, as in Python 3.10 to 3.12. Options that nobody here uses are not taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    import sys
    from types import SimpleNamespace

    _UNKNOWN = (3, 14)  # from which on a class keeps its annotations in other ways
    _SPECIAL = ("ClassVar", "InitVar", "KW_ONLY")  # annotations that are no types of fields
    _FLAGS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "slots", "weakref_slot")
    _PARAMETERS = SimpleNamespace(**dict.fromkeys(_FLAGS, False), match_args=True, kw_only=False)
    _FACTORY = object()  # stands for a default that is made anew for each instance

    def dataclass(kind=None, *, frozen=False, slots=False, eq=True, kw_only=False):
        """Make a class a record of its annotated fields."""

        def make(kind):
            return _processed(kind, frozen, slots, eq, kw_only)

        return make if kind is None else make(kind)

    def _processed(kind: type, frozen: bool, slots: bool, eq: bool, kw_only: bool) -> type:
        own = kind.__dict__
        stated = set(own)
        if own.get("__hash__", _FACTORY) is None and "__eq__" in stated:
            stated.discard("__hash__")  # which Python put there
        if own.get("__doc__") is None:
            kind.__doc__ = f"{kind.__name__}: see its fields."  # else Python writes the signature out
        made = _with_fields(kind, slots, kw_only)
        methods = {"__init__": _lazy(made, "__init__", _init_text), "__repr__": _repr}
        if kw_only:  # as what people write themselves has it
            methods["__signature__"] = _FieldsSignature()
        if eq:
            methods["__eq__"] = _lazy(made, "__eq__", _eq_text)
            methods["__hash__"] = _lazy(made, "__hash__", _hash_text) if frozen else None
        if frozen:
            methods["__setattr__"], methods["__delattr__"] = _refusals(made)
            if slots:
                methods["__getstate__"], methods["__setstate__"] = _get_state, _set_state
        for name, method in methods.items():
            if name not in stated:
                setattr(made, name, method)
        return made

    def _with_fields(kind: type, slots: bool, kw_only: bool) -> type:
        """The class with what `dataclasses` knows it by, as that makes it, where annotations are but texts of types."""
        stated = kind.__annotations__
        plain = (
            type(kind) is type
            and sys.version_info < _UNKNOWN
            and all(isinstance(text, str) for text in stated.values())
        )
        if not plain or any(word in text for text in stated.values() for word in _SPECIAL):
            return dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(kind)
        fields: dict[str, Any] = {}
        for base in kind.__mro__[-1:0:-1]:
            fields.update(base.__dict__.get("__dataclass_fields__", {}))
        for name, text in stated.items():
            default = kind.__dict__.get(name, dataclasses.MISSING)
            is_field = isinstance(default, dataclasses.Field)
            field = default if is_field else dataclasses.field(default=default)
            if is_field and field.default is dataclasses.MISSING:
                delattr(kind, name)
            elif is_field:
                setattr(kind, name, field.default)
            if field.default.__class__.__hash__ is None:
                raise ValueError(f"mutable default {type(field.default)} for field {name}: use default_factory")
            field.name, field.type, field._field_type = name, text, dataclasses._FIELD
            if field.kw_only is dataclasses.MISSING:
                field.kw_only = kw_only
            fields[name] = field
        kind.__dataclass_fields__ = fields
        kind.__dataclass_params__ = _PARAMETERS
        if "__match_args__" not in kind.__dict__:
            kind.__match_args__ = tuple([f.name for f in fields.values() if f.init and not f.kw_only])
        return _with_slots(kind, fields) if slots else kind

    def _with_slots(kind: type, fields: dict[str, Any]) -> type:
        own = dict(kind.__dict__)
        if "__slots__" in own:
            raise TypeError(f"{kind.__name__} already specifies __slots__")
        taken = {name for base in kind.__mro__[1:-1] for name in _slots_of(base)}
        own["__slots__"] = tuple([name for name in fields if name not in taken])
        for name in (*fields, "__dict__", "__weakref__"):
            own.pop(name, None)
        made = type(kind)(kind.__name__, kind.__bases__, own)
        made.__qualname__ = kind.__qualname__
        return made

    def _slots_of(base: type) -> tuple[str, ...]:
        found = base.__dict__.get("__slots__", ())
        return (found,) if isinstance(found, str) else tuple(found)

    def _lazy(kind: type, name: str, write: Any) -> Any:
        """A method that is written when it is first called."""

        def first(self, *unnamed, **named):
            if kind.__dict__.get(name) is first:
                text, known = write(kind)
                exec(f"def {name}{text}", known)
                method = known[name]
                method.__qualname__ = f"{kind.__qualname__}.{name}"
                method.__module__ = kind.__module__
                setattr(kind, name, method)
            return kind.__dict__[name](self, *unnamed, **named)

        first.__name__ = name
        return first

    class _FieldsSignature:
        """The signature of a record, for those who look at it."""

        def __get__(self, _: object, kind: type) -> Any:
            from inspect import Parameter, Signature

            return Signature([
                Parameter(
                    field.name,
                    Parameter.KEYWORD_ONLY,
                    default=Parameter.empty if field.default is dataclasses.MISSING else field.default,
                    annotation=field.type,
                )
                for field in _fields(kind)
                if field.init
            ])  # fmt: skip

    def _fields(kind: type) -> tuple[dataclasses.Field, ...]:
        return dataclasses.fields(kind)

    def _init_text(kind: type) -> tuple[str, dict[str, Any]]:
        """Fields are set past what refuses to set them: by their slots' own descriptors, where they have them."""
        known, plain, by_name, lines = {"_factory": _FACTORY, "_set": object.__setattr__}, [], [], []
        refuses = kind.__setattr__ is not object.__setattr__
        for field in _fields(kind):
            name, parameter, content = field.name, field.name, field.name
            if field.default is not dataclasses.MISSING:
                known[f"_default_{name}"] = field.default
                parameter, made = f"{name}=_default_{name}", f"_default_{name}"
            elif field.default_factory is not dataclasses.MISSING:
                known[f"_make_{name}"] = field.default_factory
                made = f"_make_{name}()"
                parameter, content = f"{name}=_factory", f"{made} if {name} is _factory else {name}"
            else:
                made = None
            if field.init:
                (by_name if field.kw_only else plain).append(parameter)
            elif made is None:
                continue
            else:
                content = made
            slot = getattr(kind, name, None)
            if not refuses:
                lines.append(f"self.{name} = {content}")
            elif type(slot).__name__ == "member_descriptor":
                known[f"_set_{name}"] = slot.__set__
                lines.append(f"_set_{name}(self, {content})")
            else:
                lines.append(f"_set(self, {name!r}, {content})")
        if hasattr(kind, "__post_init__"):
            lines.append("self.__post_init__()")
        parameters = ["self", *plain, *(["*", *by_name] if by_name else [])]
        return f"({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), known

    def _eq_text(kind: type) -> tuple[str, dict[str, Any]]:
        names = [field.name for field in _fields(kind) if field.compare]
        return (
            "(self, other):\n if self is other:\n  return True\n"
            f" if other.__class__ is not self.__class__:\n  return NotImplemented\n"
            f" return {_tuple('self', names)} == {_tuple('other', names)}"
        ), {}

    def _hash_text(kind: type) -> tuple[str, dict[str, Any]]:
        names = [field.name for field in _fields(kind) if (field.compare if field.hash is None else field.hash)]
        return f"(self):\n return hash({_tuple('self', names)})", {}

    def _tuple(of: str, names: list[str]) -> str:
        return "(" + "".join(f"{of}.{name}, " for name in names) + ")"

    def _repr(self: Any) -> str:
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in _fields(type(self)) if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _refusals(kind: type) -> tuple[Any, Any]:
        """Fields of a frozen record are neither set nor removed; those that subclasses add may be."""
        names = frozenset(field.name for field in _fields(kind))

        def __setattr__(self, name, value):  # noqa: N807
            if type(self) is kind or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(kind, self).__setattr__(name, value)

        def __delattr__(self, name):  # noqa: N807
            if type(self) is kind or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(kind, self).__delattr__(name)

        return __setattr__, __delattr__

    def _get_state(self: Any) -> list[Any]:
        return [getattr(self, field.name) for field in _fields(type(self))]

    def _set_state(self: Any, state: list[Any]) -> None:
        for field, content in zip(_fields(type(self)), state):
            object.__setattr__(self, field.name, content)
