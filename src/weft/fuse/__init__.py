"""TensorProgram -> groups of steps that become one kernel each, with the layout of every value."""
