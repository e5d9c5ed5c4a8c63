"""Robustness tests: damaged input (`fuzz`), killed processes and full disks (`chaos`), load
(`load`)."""
