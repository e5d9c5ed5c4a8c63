"""CPU kernels, compiled with Numba."""
