"""A calibration with round numbers."""

from __future__ import annotations

from weft.cost.calibration import REACHED_BANDWIDTH, Calibration, WorkKind
from weft.cost.roofline import Peak
from weft.ir.dtypes import DType

PLAIN = Calibration(
    device="slow",
    identity="test",
    peak=Peak(1e9, 1e9 / REACHED_BANDWIDTH),
    products=((DType.float32, 1e9), (DType.int8, 4e9)),
    reached=((WorkKind.MAP, 0.5),),
    launch_seconds=1e-6,
    iteration_seconds=2e-6,
    run_seconds=1e-5,
    host_step_seconds=1e-4,
)
