"""Kernels for CPUs, compiled with Numba."""
