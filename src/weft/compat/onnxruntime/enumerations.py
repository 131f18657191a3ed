"""onnxruntime's enumerations. As in pybind11, their classes also take numbers that no member has."""

from __future__ import annotations

from typing import Any, ClassVar

from weft.compat.onnxruntime.naming import STATE


class OrtEnumeration:
    """A number, with a name if it is a member. It equals the number; members are attributes of the class."""

    __slots__ = ("_value",)
    __members__: ClassVar[dict[str, Any]] = {}

    def __init__(self, value: Any) -> None:
        self._value: int
        try:
            self._value = value._value if isinstance(value, OrtEnumeration) else value.__index__()
        except AttributeError:
            raise TypeError(f"{type(self).__name__}: expected an integer, not a {type(value).__name__}") from None

    @property
    def value(self) -> int:
        return int(self._value)

    @property
    def name(self) -> str:
        return next((name for name, member in type(self).__members__.items() if member._value == self._value), "???")

    def __int__(self) -> int:
        return int(self._value)

    __index__ = __int__

    def __hash__(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, OrtEnumeration)) and int(other) == self._value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self._value}>"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_member, (type(self).__name__, self._value)


def _make_enumeration(class_name: str, **members: int) -> Any:
    enumeration: Any = type(class_name, (OrtEnumeration,), {"__slots__": (), "__module__": STATE, "__members__": {}})
    for name, number in members.items():
        enumeration.__members__[name] = enumeration(number)
        setattr(enumeration, name, enumeration.__members__[name])
    return enumeration


def _unpickle_member(class_name: str, value: int) -> OrtEnumeration:
    member: OrtEnumeration = globals()[class_name](value)
    return member


GraphOptimizationLevel = _make_enumeration(
    "GraphOptimizationLevel",
    ORT_DISABLE_ALL=0,
    ORT_ENABLE_BASIC=1,
    ORT_ENABLE_EXTENDED=2,
    ORT_ENABLE_LAYOUT=3,
    ORT_ENABLE_ALL=99,
)
ExecutionMode = _make_enumeration("ExecutionMode", ORT_SEQUENTIAL=0, ORT_PARALLEL=1)
ExecutionOrder = _make_enumeration("ExecutionOrder", DEFAULT=0, PRIORITY_BASED=1, MEMORY_EFFICIENT=2)
OrtAllocatorType = _make_enumeration("OrtAllocatorType", INVALID=-1, ORT_DEVICE_ALLOCATOR=0, ORT_ARENA_ALLOCATOR=1)
OrtMemType = _make_enumeration("OrtMemType", CPU_INPUT=-2, CPU_OUTPUT=-1, CPU=-1, DEFAULT=0)
OrtDeviceMemoryType = _make_enumeration("OrtDeviceMemoryType", DEFAULT=0, HOST_ACCESSIBLE=5)
OrtMemoryInfoDeviceType = _make_enumeration("OrtMemoryInfoDeviceType", CPU=0, GPU=1, NPU=3, FPGA=2)
OrtHardwareDeviceType = _make_enumeration("OrtHardwareDeviceType", CPU=0, GPU=1, NPU=2)
OrtSparseFormat = _make_enumeration(
    "OrtSparseFormat", ORT_SPARSE_UNDEFINED=0, ORT_SPARSE_COO=1, ORT_SPARSE_CSRC=2, ORT_SPARSE_BLOCK_SPARSE=4
)
OrtExecutionProviderDevicePolicy = _make_enumeration(
    "OrtExecutionProviderDevicePolicy",
    DEFAULT=0,
    PREFER_CPU=1,
    PREFER_NPU=2,
    PREFER_GPU=3,
    MAX_PERFORMANCE=4,
    MAX_EFFICIENCY=5,
    MIN_OVERALL_POWER=6,
)
OrtCompileApiFlags = _make_enumeration(
    "OrtCompileApiFlags", NONE=0, ERROR_IF_NO_NODES_COMPILED=1, ERROR_IF_OUTPUT_FILE_EXISTS=2
)
ArenaExtendStrategy = _make_enumeration("ArenaExtendStrategy", kNextPowerOfTwo=0, kSameAsRequested=1)
OrtCompiledModelCompatibility = _make_enumeration(
    "OrtCompiledModelCompatibility",
    EP_NOT_APPLICABLE=0,
    EP_SUPPORTED_OPTIMAL=1,
    EP_SUPPORTED_PREFER_RECOMPILATION=2,
    EP_UNSUPPORTED=3,
)
OrtDeviceEpIncompatibilityReason = _make_enumeration(
    "OrtDeviceEpIncompatibilityReason",
    NONE=0,
    DRIVER_INCOMPATIBLE=1,
    DEVICE_INCOMPATIBLE=2,
    MISSING_DEPENDENCY=4,
    UNKNOWN=-(2**31),
)
