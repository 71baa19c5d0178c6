//! The crates depend on each other as docs/ARCHITECTURE.md draws it, and not otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::command::repository;

type Graph = BTreeMap<String, BTreeSet<String>>;

/// The graph in the block marked `dependencies`: lines `crate -> dependency, dependency`.
fn drawn() -> Graph {
    let text = std::fs::read_to_string(Path::new(repository()).join("docs/ARCHITECTURE.md"))
        .expect("the document can be read");
    let (_, rest) = text
        .split_once("```dependencies\n")
        .expect("the document draws the graph");
    let (block, _) = rest.split_once("```").expect("the block ends");
    let parse = |line: &str| {
        let (name, dependencies) = line.split_once("->").expect("a line is `crate -> dependencies`");
        let dependencies = dependencies
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        (name.trim().to_owned(), dependencies)
    };
    block
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(parse)
        .collect()
}

/// The graph that cargo sees, test dependencies left out.
fn built() -> Graph {
    let metadata = MetadataCommand::new()
        .manifest_path(Path::new(repository()).join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo knows the workspace");
    let short = |name: &str| name.strip_prefix("pulselet-").map(str::to_owned);
    metadata
        .packages
        .iter()
        .filter_map(|package| {
            let dependencies = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind == DependencyKind::Normal)
                .filter_map(|dependency| short(&dependency.name))
                .collect();
            short(package.name.as_str()).map(|name| (name, dependencies))
        })
        .collect()
}

#[test]
fn the_crates_depend_on_each_other_as_drawn() {
    assert_eq!(
        built(),
        drawn(),
        "left: Cargo.toml files, right: docs/ARCHITECTURE.md"
    );
}
