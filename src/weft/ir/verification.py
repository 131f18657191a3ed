"""One switch for what stages prove about their results: WEFT_VERIFY=1 in the environment, as all tests run with it.

Programs are verified in every run (ir/verify.py). With the switch, so are kernels, as soon as all sections are
built, and plans (plan/verify.py). What is wrong is an InternalError.
"""

from __future__ import annotations

import os
from functools import cache

from weft.ir.work import HostSection, Section, all_works

VARIABLE = "WEFT_VERIFY"


@cache
def is_verifying() -> bool:
    """Whether this process proves its kernels and plans; read once."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def verified(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """The sections; where verification is switched on, with every kernel checked, inside of scans and bodies too."""
    if is_verifying():
        from weft.ir.kernel_verify import verify_kernel

        for section in sections:
            if isinstance(section, HostSection):
                for body in section.bodies:
                    verified(body)
                continue
            kernels = {id(launch.kernel): launch.kernel for work in all_works(section) for launch in work.launches}
            for kernel in kernels.values():
                verify_kernel(kernel)
    return sections
