//! Paths of the command line, made absolute: this is the one place where that happens.
//!
//! A path given to an agent outlives the command: shims and plugins use it in a working directory of their own, and the
//! next agent, which may be started elsewhere, finds it in the records of this one. What a command reads at once, such
//! as a manifest, stays as the user wrote it, and so do the messages about it.

use std::io;
use std::path::{Component, Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

/// Takes the path of a flag as seen from the working directory.
pub(crate) fn parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| absolute(&path))
}

/// A path from the root on, without `..`. A link stays a link, because somebody may change where it leads while the agent
/// runs; only the parent of what it leads to is found by way of it.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    let mut absolute = PathBuf::new();
    for component in std::path::absolute(path)?.components() {
        if component == Component::ParentDir {
            absolute = existing(absolute);
            absolute.pop();
        } else {
            absolute.push(component);
        }
    }
    Ok(absolute)
}

/// The one name of a directory, whichever way leads to it: nobody must take it for two.
pub(crate) fn real(path: &Path) -> io::Result<PathBuf> {
    let path = absolute(path)?;
    let components = path.components();
    Ok(components.fold(PathBuf::new(), |real, next| existing(real.join(next))))
}

/// Where a path leads. What does not exist yet is not a link, and what cannot be looked at is left to whoever uses it.
fn existing(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;
    use std::os::unix::fs::symlink;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn every_way_to_a_directory_ends_in_one_name() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("link")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        for (written, with_links, without) in [
            ("a/b", "a/b", "a/b"),
            ("./a//b/", "a/b", "a/b"),
            ("link", "link", "a/b"),
            ("a/../link", "link", "a/b"),
            ("link/..", "a", "a"),
            ("link/new", "link/new", "a/b/new"),
            ("link/new/../../c", "a/c", "a/c"),
            ("new/data", "new/data", "new/data"),
            ("new/../data", "data", "data"),
            ("dangling", "dangling", "dangling"),
        ] {
            let path = root.join(written);
            assert_eq!(absolute(&path).unwrap(), root.join(with_links), "{written}");
            assert_eq!(real(&path).unwrap(), root.join(without), "{written}");
        }
        assert_eq!(real(Path::new("/..")).unwrap(), Path::new("/"));
    }

    #[test]
    fn relative_paths_begin_in_the_working_directory() {
        let here = std::env::current_dir().unwrap();
        let path = Path::new("no-such/data");
        assert_eq!(absolute(path).unwrap(), here.join(path));
        assert_eq!(real(path).unwrap(), here.join(path));
    }

    #[test]
    fn what_an_agent_keeps_is_absolute() {
        let paths = "--manifests=m --kubeconfig=k --cni-conf-dir=c --cni-bin-dir=a:../b";
        let line = "pulselet node".split(' ').chain(paths.split(' '));
        let Command::Node(node) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command");
        };
        let here = std::env::current_dir().unwrap();
        assert_eq!(node.manifests, Some(here.join("m")));
        assert_eq!(node.kubeconfig, Some(here.join("k")));
        let cni = node.agent.cni;
        assert_eq!(cni.cni_conf_dir, Some(here.join("c")));
        let beside = here.parent().unwrap().join("b");
        assert_eq!(cni.cni_bin_dir, [here.join("a"), beside]);
    }
}
