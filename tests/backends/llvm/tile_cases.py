"""Tile products for a GPU: kernels of all types and forms as PTX, with what should come out, and large ones to time.

PYTHONPATH=src:tests python -m backends.llvm.tile_cases write CASES.pickle [PART OF NAMES ...]
python tests/backends/llvm/run_tiles.py CASES.pickle RESULTS.pickle     (on the machine with the GPU; numpy and libcuda)
PYTHONPATH=src:tests python -m backends.llvm.tile_cases check RESULTS.pickle
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from backends.llvm.tile_products import Product

from weft.backends.llvm import assembly, tile_pipeline
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import emit
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.thread_lanes import ThreadLanes, dynamic_shared_bytes
from weft.ir.dtypes import DType
from weft.ir.kernel_verify import verify_kernel
from weft.kernels.lower.barriers import insert_barriers

BF16, F16, F32 = DType.bfloat16, DType.float16, DType.float32
PROCESSORS = {"mma.sync": "sm_80", "wgmma": "sm_90a"}
FEATURES = {"sm_80": "+ptx80", "sm_89": "+ptx84", "sm_90a": "+ptx84"}


@dataclass(frozen=True)
class TileCase:
    product: Product
    instruction: str
    processor: str
    timed: bool = False
    second_barrier_stages: int = tile_pipeline.SECOND_BARRIER_STAGES

    @property
    def name(self) -> str:
        again = (
            ""
            if self.second_barrier_stages == tile_pipeline.SECOND_BARRIER_STAGES
            else f" again_{self.second_barrier_stages}"
        )
        return f"{self.instruction} {self.processor} {self.product.name}{again}"

    def ptx(self) -> tuple[str, int]:
        """Return the PTX, and the bytes of dynamic shared memory of launches."""
        kernel = insert_barriers(self.product.kernel)
        verify_kernel(kernel)
        module = assembly.Module("weft")
        usual = tile_pipeline.SECOND_BARRIER_STAGES
        tile_pipeline.SECOND_BARRIER_STAGES = self.second_barrier_stages
        emit(kernel, module, ThreadLanes(tile_products=self.instruction))
        tile_pipeline.SECOND_BARRIER_STAGES = usual
        text = assembly_text(str(module), NvidiaProcessor(self.processor, FEATURES[self.processor]))
        return text, dynamic_shared_bytes(kernel, module)

    def build_case(self) -> dict[str, Any]:
        """Build a case of `run_tiles.py`."""
        text, shared = self.ptx()
        product = self.product
        launch = (product.name, product.blocks, product.lanes, shared, [0, 1, 2, 3], [])
        case: dict[str, Any] = {"name": self.name, "ptx": text.encode(), "launches": [launch], "out": str(product.out)}
        if self.timed:
            forms = (str(product.left), product.transposed_left), (str(product.right), product.transposed_right)
            return {**case, "shape": product.shape, "forms": forms, "repeated": product.repeated}
        arrays = [array.tobytes() for array in product.arrays]
        rough = product.left.is_float and product.left.bits == 8 and self.instruction == "wgmma"
        reference = {
            "expected": product.expected,
            "scale": float(np.sqrt(product.shape[2])),
            "limit": 1e-3 if rough else 2e-5,
        }
        return {**case, **reference, "arrays": arrays}


def products() -> list[Product]:
    """List small products, each for all instructions that support it."""
    base = Product("base", shape=(128, 128, 192), tiles=(128, 128, 64), lanes=128, stages=3)
    products = [
        base,
        replace(base, name="one_stage", stages=1),
        replace(base, name="two_stages", stages=2),
        replace(base, name="four_stages", stages=4, shape=(128, 128, 640)),
        replace(base, name="few_turns", stages=4, shape=(128, 128, 64)),
        replace(base, name="half", left=F16, right=F16),
        replace(base, name="transposed_left", transposed_left=True),
        replace(base, name="transposed_right", transposed_right=True),
        replace(base, name="transposed_both", left=F16, right=F16, transposed_left=True, transposed_right=True),
        replace(base, name="two_groups", lanes=256),
        replace(base, name="shared_columns", lanes=256, tiles=(64, 128, 64)),
        replace(
            base,
            name="shared_columns_transposed",
            lanes=256,
            tiles=(64, 128, 64),
            transposed_left=True,
            transposed_right=True,
        ),
        replace(base, name="wide", lanes=256, tiles=(128, 256, 64), shape=(256, 512, 256), stages=4),
        replace(
            base, name="wide_transposed", lanes=256, tiles=(128, 256, 64), shape=(256, 512, 256), transposed_right=True
        ),
        replace(base, name="deep", tiles=(64, 64, 128)),
        replace(base, name="deep_transposed", tiles=(64, 64, 128), shape=(128, 128, 384), transposed_left=True),
        replace(base, name="shallow", tiles=(64, 64, 32)),
        replace(base, name="shallowest", tiles=(64, 64, 16)),
        replace(base, name="odd_depth", tiles=(64, 96, 96), shape=(128, 192, 192)),
        replace(base, name="few_rows", tiles=(16, 64, 64), shape=(32, 128, 192)),
        replace(base, name="few_rows_transposed", tiles=(16, 64, 64), shape=(32, 128, 192), transposed_right=True),
        replace(base, name="few_columns", tiles=(64, 8, 64), shape=(128, 16, 192)),
        replace(base, name="ragged", shape=(200, 168, 136), lanes=256),
        replace(base, name="ragged_transposed", shape=(200, 168, 136), transposed_left=True, transposed_right=True),
        replace(base, name="ragged_puts", shape=(200, 168, 136), bring="puts", tiles=(64, 64, 64)),
        replace(base, name="puts", bring="puts", tiles=(64, 64, 64)),
        replace(base, name="puts_one_stage", bring="puts", stages=1, tiles=(64, 64, 64)),
        replace(base, name="puts_two_stages", bring="puts", stages=2, transposed_left=True, tiles=(64, 64, 64)),
        replace(base, name="both", bring="both", lanes=256),
        replace(base, name="whole", bring="whole", tiles=(64, 64, 64)),
        replace(base, name="parts", parts=True, lanes=256),
        replace(base, name="parts_puts", parts=True, bring="puts", lanes=256, tiles=(64, 64, 64)),
        replace(base, name="scaled", scaled=True),
        replace(base, name="scaled_parts", scaled=True, parts=True, lanes=256, shape=(200, 168, 136)),
        replace(base, name="tf32", left=F32, right=F32, tiles=(128, 128, 32)),
        replace(base, name="tf32_deep", left=F32, right=F32, tiles=(64, 64, 64)),
        replace(base, name="tf32_transposed_left", left=F32, right=F32, tiles=(64, 64, 32), transposed_left=True),
        replace(base, name="tf32_transposed_right", left=F32, right=F32, tiles=(64, 64, 32), transposed_right=True),
        replace(base, name="bfloat16_out", result=BF16),
    ]
    for left in (DType.int8, DType.uint8):
        for right in (DType.int8, DType.uint8):
            whole = replace(base, left=left, right=right, tiles=(64, 64, 128), shape=(128, 128, 384))
            products.append(replace(whole, name=f"{left}_{right}"))
    products.append(replace(whole, name="bytes_wide", tiles=(128, 256, 128), shape=(128, 256, 384), lanes=256))
    products.append(replace(whole, name="bytes_transposed_right", transposed_right=True))
    products.append(replace(whole, name="bytes_transposed_left", transposed_left=True, shape=(128, 96, 400)))
    for left in (DType.float8e4m3fn, DType.float8e5m2):
        for right in (DType.float8e4m3fn, DType.float8e5m2):
            small = replace(base, left=left, right=right, tiles=(64, 64, 128), shape=(128, 128, 384))
            products.append(replace(small, name=f"{left}_{right}"))
    return products


def list_large_products() -> list[Product]:
    """List products to be timed."""
    base = Product("base", lanes=256, tiles=(128, 256, 64), stages=4, ordered=16, result=BF16)
    products = []
    for size in (4096, 8192):
        shaped = replace(base, shape=(size, size, size))
        products += [
            replace(shaped, name=f"size_{size}_128x256_4"),
            replace(shaped, name=f"size_{size}_128x256_3", stages=3),
            replace(shaped, name=f"size_{size}_128x128_4", tiles=(128, 128, 64)),
            replace(shaped, name=f"size_{size}_128x128_3", tiles=(128, 128, 64), stages=3),
            replace(shaped, name=f"size_{size}_128x128_3_one_group", tiles=(128, 128, 64), stages=3, lanes=128),
            replace(shaped, name=f"size_{size}_64x128_4", tiles=(64, 128, 64), lanes=128),
            replace(shaped, name=f"size_{size}_64x256_2", tiles=(64, 256, 64), lanes=128, stages=2),
            replace(shaped, name=f"size_{size}_256x128_4", tiles=(256, 128, 64)),
            replace(shaped, name=f"size_{size}_128x256x128_2", tiles=(128, 256, 128), stages=2),
        ]
    shaped = replace(base, shape=(8192, 8192, 8192))
    products += [
        replace(shaped, name="size_8192_128x256_4_transposed_right", transposed_right=True),
        replace(shaped, name="size_8192_128x256_4_transposed_left", transposed_left=True),
        replace(shaped, name="size_8192_128x256_4_order_8", ordered=8),
        replace(shaped, name="size_8192_128x128_4_parts", parts=True, tiles=(128, 128, 64)),
        replace(shaped, name="size_8192_128x128_4_six_parts", parts=True, tiles=(128, 128, 64), repeated=6),
        replace(shaped, name="size_8192_128x128_4_six", tiles=(128, 128, 64), repeated=6),
        replace(shaped, name="size_8192_128x128_2_parts", parts=True, tiles=(128, 128, 128), stages=2),
        replace(shaped, name="size_8192_128x256_4_order_1", ordered=1),
        replace(shaped, name="size_8192_tf32", left=F32, right=F32, tiles=(128, 128, 32), result=F32),
        replace(shaped, name="size_8192_tf32_wide", left=F32, right=F32, tiles=(128, 256, 32), result=F32),
        replace(
            shaped, name="size_8192_int8", left=DType.int8, right=DType.int8, tiles=(128, 256, 128), result=DType.int32
        ),
        replace(
            shaped, name="size_8192_e4m3", left=DType.float8e4m3fn, right=DType.float8e4m3fn, tiles=(128, 128, 128)
        ),
    ]
    return products


def stages() -> list[Product]:
    """List products that are timed with and without a second barrier."""
    return [
        product for product in list_large_products() if product.shape == (8192, 8192, 8192) and product.ordered == 16
    ]


def _other(stages: int) -> int:
    """Return the limit of stages that changes whether there is a second barrier."""
    return stages if stages > tile_pipeline.SECOND_BARRIER_STAGES else stages - 1


def list_mma_products() -> list[Product]:
    """List products to be timed with mma.sync."""
    base = Product("base", lanes=256, tiles=(128, 128, 32), stages=4, ordered=16, result=BF16, shape=(4096, 4096, 4096))
    return [
        replace(base, name="size_4096_128x128x32_4"),
        replace(base, name="size_4096_128x256x32_3", tiles=(128, 256, 32), stages=3),
        replace(base, name="size_4096_128x128x64_3", tiles=(128, 128, 64), stages=3),
        replace(base, name="size_4096_128x128x64_3_four_warps", tiles=(128, 128, 64), stages=3, lanes=128),
        replace(
            base, name="size_4096_int8", left=DType.int8, right=DType.int8, tiles=(128, 128, 64), result=DType.int32
        ),
        replace(base, name="size_4096_tf32", left=F32, right=F32, result=F32),
    ]


def cases() -> list[TileCase]:
    tile_cases = []
    for product in products():
        narrow = product.left.is_float and product.left.bits == 8
        tile_cases.append(TileCase(product, "mma.sync", "sm_89" if narrow else "sm_80"))
        tile_cases.append(TileCase(product, "wgmma", "sm_90a"))
    tile_cases += [TileCase(product, "wgmma", "sm_90a", True) for product in list_large_products()]
    tile_cases += [TileCase(product, "wgmma", "sm_90a", True, _other(product.stages)) for product in stages()]
    tile_cases += [TileCase(product, "mma.sync", "sm_80", True) for product in list_mma_products()]
    return tile_cases


def main() -> None:
    action, file, *parts = sys.argv[1:]
    if action == "write":
        chosen = [case for case in cases() if not parts or any(part in case.name for part in parts)]
        Path(file).write_bytes(pickle.dumps([case.build_case() for case in chosen]))
        print(f"{len(chosen)} cases")
        return
    results = pickle.loads(Path(file).read_bytes())
    for case in cases():
        result = results.get(case.name)
        if result is None or case.timed:
            continue
        assert not isinstance(result, str), result
        actual = np.frombuffer(result, case.product.out.numpy).reshape(case.product.shape[:2])
        print(f"{case.name}: {case.product.check(actual):.3g}")


if __name__ == "__main__":
    main()
