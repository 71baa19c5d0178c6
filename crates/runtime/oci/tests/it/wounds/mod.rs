//! The wounds of others: for each class of weakness that runc, containerd, CRI-O, the kubelet or an image library has had,
//! the same attack here. `docs/wounds.md` lists the classes and where each is tried; those that were wounds of ours as
//! well are in `escapes`.

mod files;
mod images;
mod output;
mod processes;
mod sandboxes;
