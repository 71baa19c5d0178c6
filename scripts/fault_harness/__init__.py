"""What scripts/faults and scripts/soak are made of.

- `client`: requests to the API; it stands alone, because other machines get it too;
- `interposer`: a library that is loaded before the C library and gives EIO and another wall clock;
- `machine`: what there is on this machine, so that before and after can be compared;
- `world`: servers on a file system of their own, and pods;
- `load`: a writer, a watcher, and pods that come and go;
- `faults`: the list.
"""
