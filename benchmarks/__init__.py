"""How fast the emulator is, against XLA on the CPU: `python -m benchmarks`."""
