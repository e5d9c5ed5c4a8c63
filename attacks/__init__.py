"""What tries to break histodict: damaged input (`fuzz`), kills and full disks (`chaos`), `load`."""
