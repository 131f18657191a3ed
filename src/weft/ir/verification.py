"""The switch for expensive verification: WEFT_VERIFY=1 in the environment, with which all tests run.

Programs are always verified (ir/verify.py). With the switch, so are kernels, once all sections are built, and plans
(plan/verify.py). Violations raise InternalError.
"""

from __future__ import annotations

import os
from functools import cache

from weft.ir.work import HostSection, Section, all_works

VARIABLE = "WEFT_VERIFY"


@cache
def is_verifying() -> bool:
    """Whether this process verifies kernels and plans; the environment is read once."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def verified(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """Return the sections, after verifying every kernel in them if verification is on."""
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
