"""Runs executables on an emulated IPU; needs NumPy and SciPy, never TensorFlow or the compiler."""
