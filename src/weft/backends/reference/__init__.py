"""The numpy meaning of every primitive and host step: the oracle for all devices and the engine of folding."""
