"""What scripts/vm is made of.

- `image`: what machines are made of (kernels and disks), made once and kept;
- `machine`: an emulated machine, its disks and its command line;
- `build`: the programs and tests that cargo has built;
- `runtime_tests`: the tests of the built-in runtime;
- `power_cuts`: a server whose power is cut;
- `service`: the package under systemd;
- `network`: several machines on one emulated network.
"""
