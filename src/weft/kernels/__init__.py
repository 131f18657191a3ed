"""FusedProgram -> kernels, built from templates. Kernels do not depend on the language that a backend emits."""
