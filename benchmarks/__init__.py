"""Measurements that figures are quoted from. Development only: not part of the package."""
