"""Kernels for NVIDIA GPUs, with PyTorch and Triton."""
