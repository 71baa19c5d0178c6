//! The crates depend on each other as docs/ARCHITECTURE.md draws it, and not otherwise; a type's name is enough to know
//! which one is meant; and the documents name only files that are there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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

/// Every Rust file below a `src` folder of the workspace's crates.
fn sources() -> Vec<PathBuf> {
    let mut sources = Vec::new();
    let mut folders = vec![Path::new(repository()).join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && path.components().any(|part| part.as_os_str() == "src")
            {
                sources.push(path);
            }
        }
    }
    sources
}

/// The name of the public type that a line of a source declares. Types inside of inline modules are indented and do not
/// count: no other module sees them by their name alone.
fn public_type(line: &str) -> Option<&str> {
    let item = line.strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let rest = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn no_public_type_name_stands_twice_in_the_workspace() {
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).expect("a source can be read");
        let shown = path.strip_prefix(repository()).expect("a file of the repository");
        for name in text.lines().filter_map(public_type) {
            let places = declared.entry(name.to_owned()).or_default();
            places.push(shown.display().to_string());
        }
    }
    declared.retain(|_, places| places.len() > 1);
    assert!(
        declared.is_empty(),
        "rename all but one of each, so that the name says which type is meant: {declared:#?}"
    );
}

/// Sources that may read the words of an error, because another program gives no code that says the same.
const READ_WORDS_OF_OTHERS: [(&str, &str); 6] = [
    (
        "crates/api/server/src/store/etcd/",
        "etcd has one status code for several failures",
    ),
    (
        "crates/api/store/src/etcd/",
        "etcd has one status code for several failures",
    ),
    (
        "crates/node/dashboard/src/api_lines.rs",
        "events of other nodes have their cause in words",
    ),
    (
        "crates/node/probe/src/dial.rs",
        "the resolver of the C library gives words",
    ),
    (
        "crates/runtime/cri-client/src/",
        "CRI servers have one status code for several failures",
    ),
    (
        "crates/runtime/cri-server/src/server.rs",
        "the gRPC library has one status code for several failures",
    ),
];

/// Whether a line of a source looks for words in an error.
fn reads_words_of_an_error(line: &str) -> bool {
    let searches = [".contains(", ".starts_with(", ".ends_with("];
    let subjects = [
        "message",
        "message()",
        "error.to_string()",
        "why",
        "reason.to_string()",
    ];
    searches.iter().any(|search| {
        line.match_indices(search).any(|(at, _)| {
            let before = line[..at].trim_end();
            subjects.iter().any(|subject| before.ends_with(subject))
        })
    })
}

#[test]
fn no_decision_follows_the_words_of_an_error() {
    let mut found = Vec::new();
    for path in sources() {
        let shown = path.strip_prefix(repository()).expect("a file of the repository");
        let shown = shown.display().to_string();
        if READ_WORDS_OF_OTHERS
            .iter()
            .any(|(allowed, _)| shown.starts_with(allowed))
        {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source can be read");
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code
            .lines()
            .enumerate()
            .filter(|(_, line)| reads_words_of_an_error(line));
        found.extend(lines.map(|(index, line)| format!("{shown}:{}: {}", index + 1, line.trim())));
    }
    assert!(
        found.is_empty(),
        "give the error a variant and match that: {found:#?}"
    );
}

#[test]
fn a_search_in_the_words_of_an_error_is_recognized() {
    for line in [
        "if error.message.starts_with(\"unknown field \") {",
        "let full = status.message().contains(\"space\");",
        "if error.to_string().contains(\"x\") {",
    ] {
        assert!(reads_words_of_an_error(line), "{line}");
    }
    assert!(!reads_words_of_an_error("if text.starts_with('{') {"));
}

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(repository()).join(name)).expect("the document can be read")
}

/// What stands between backticks in a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_documents_name_only_paths_that_exist() {
    let mut missing = Vec::new();
    for name in [
        "CONTRIBUTING.md",
        "docs/ARCHITECTURE.md",
        "SECURITY.md",
        "docs/wounds.md",
    ] {
        let text = document(name);
        // Blocks of code have three backticks at each end, which leaves the pairs of the others as they are.
        let paths = quoted(&text).filter(|quoted| quoted.starts_with("crates/"));
        let absent = paths.filter(|path| !Path::new(repository()).join(path).exists());
        missing.extend(absent.map(|path| format!("{name}: {path}")));
    }
    assert!(
        missing.is_empty(),
        "the documents name what is not there: {missing:#?}"
    );
}

/// Every name that a test has: functions, and what the macros of scenarios and of end-to-end tests are given.
fn names_of_tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![Path::new(repository()).join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .expect("the folder can be read")
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source can be read");
                names.extend(tests_in(&text));
            }
        }
    }
    names
}

/// What the names of tests come after.
enum Awaited {
    Nothing,
    /// Attributes may stand between the mark of a test and its function.
    Function,
    /// Comments may stand between the opening of a macro and the name it is given.
    Name,
}

/// The names of the tests in a source.
fn tests_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut awaited = Awaited::Nothing;
    for line in text.lines().map(str::trim) {
        let of_macro = ["scenario!(", "e2e!("]
            .iter()
            .find_map(|open| line.strip_prefix(open));
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            awaited = Awaited::Function;
        } else if of_macro.is_some() {
            awaited = Awaited::Name;
        }
        let rest = match awaited {
            Awaited::Nothing => None,
            Awaited::Function => line.trim_start_matches("async ").strip_prefix("fn "),
            Awaited::Name => {
                Some(of_macro.unwrap_or(line)).filter(|rest| !rest.is_empty() && !rest.starts_with('/'))
            }
        };
        if let Some(rest) = rest {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            names.extend(name.map(str::to_owned));
            awaited = Awaited::Nothing;
        }
    }
    names
}

/// Rows of docs/proposals.md are `id | statement | where | proof`.
#[test]
fn every_statement_of_the_proposals_is_proved_by_a_test_that_exists() {
    let text = document("docs/proposals.md");
    let tests = names_of_tests();
    let (mut ids, mut wrong) = (BTreeSet::new(), Vec::new());
    for row in text
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(". | `"))
    {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _, place, proof] = cells[..] else {
            wrong.push(format!("not four cells: {row}"));
            continue;
        };
        if !ids.insert(id) {
            wrong.push(format!("{id} is there twice"));
        }
        let missing = quoted(place).filter(|path| !Path::new(repository()).join(path).exists());
        wrong.extend(missing.map(|path| format!("{id}: no file {path}")));
        let proofs: Vec<&str> = quoted(proof).collect();
        if proofs.is_empty() || quoted(place).next().is_none() {
            wrong.push(format!("{id} names no file or no test"));
        }
        let absent = proofs.into_iter().filter(|name| !tests.contains(*name));
        wrong.extend(absent.map(|name| format!("{id}: no test {name}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for proposal in ["G", "M", "S", "U", "I"] {
        let prefix = format!("{proposal}.");
        let count = ids.iter().filter(|id| id.starts_with(&prefix)).count();
        assert!(count >= 20, "only {count} statements of {proposal}");
    }
}

/// Between backticks, words joined by lines below: no option, path or field of Kubernetes looks like this.
fn test_names(text: &str) -> Vec<&str> {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    quoted(text)
        .filter(|name| name.split('_').count() > 2 && name.split('_').all(is_word))
        .filter(|name| !name.bytes().any(|byte| byte.is_ascii_uppercase()))
        .collect()
}

/// The items of all lists in a part of a document, each with the lines that belong to it.
fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("- ") {
            items.push(line.to_owned());
            inside = true;
        } else if line.trim().is_empty() || line.starts_with('#') {
            inside = false;
        } else if let Some(item) = items.last_mut().filter(|_| inside) {
            item.push(' ');
            item.push_str(line.trim());
        }
    }
    items
}

#[test]
fn every_promise_about_security_has_its_test() {
    let text = document("SECURITY.md");
    let (_, rest) = text
        .split_once("## What each can and cannot do")
        .expect("the document has a threat model");
    let model = rest.split("\n## ").next().unwrap_or_default();
    let promises = items(model);
    assert!(promises.len() > 30, "only {} promises were found", promises.len());
    let untested: Vec<_> = promises
        .iter()
        .filter(|promise| test_names(promise).is_empty())
        .collect();
    assert!(untested.is_empty(), "promises that name no test: {untested:#?}");
    let wounds = document("docs/wounds.md");
    let rows: Vec<&str> = wounds.lines().filter(|line| line.starts_with("| CVE")).collect();
    assert!(rows.len() > 20, "only {} classes were found", rows.len());
    let untried: Vec<_> = rows.iter().filter(|row| test_names(row).is_empty()).collect();
    assert!(untried.is_empty(), "classes that name no test: {untried:#?}");
    let tests = names_of_tests();
    let missing: Vec<_> = test_names(&text)
        .into_iter()
        .chain(test_names(&wounds))
        .filter(|name| !tests.contains(*name))
        .collect();
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
}

/// The rows of "Follow one probe" are `what happens | file | functions`.
#[test]
fn the_way_of_a_probe_is_as_written() {
    let text = document("docs/ARCHITECTURE.md");
    let (_, rest) = text
        .split_once("## Follow one probe")
        .expect("the document follows a probe");
    let section = rest.split("\n## ").next().unwrap_or_default();
    let mut hops = 0;
    for row in section.lines().filter(|line| line.contains("| `crates/")) {
        let mut cells = row.split('|').skip(2);
        let (file, functions) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        let source = document(quoted(file).next().expect("a row names its file"));
        for function in quoted(functions) {
            hops += 1;
            let declared = [format!("fn {function}("), format!("fn {function}<")];
            assert!(
                declared.iter().any(|text| source.contains(text)),
                "there is no function {function} in{file}"
            );
        }
    }
    assert!(hops > 30, "only {hops} functions were found in the table");
}

/// The rows of docs/reliability.md are `what happens | what holds | file | test`.
#[test]
fn every_promise_has_its_test() {
    let page = document("docs/reliability.md");
    let mut promises = 0;
    for row in page.lines().filter(|line| line.contains("| `crates/")) {
        let cells: Vec<&str> = row.split('|').collect();
        let [_, _, _, file, test, _] = cells[..] else {
            panic!("not four cells: {row}");
        };
        let source = document(quoted(file).next().expect("a row names its file"));
        let test = quoted(test).next().expect("a row names its test");
        promises += 1;
        assert!(
            source.contains(&format!("fn {test}(")),
            "there is no test {test} in{file}"
        );
    }
    assert!(promises > 30, "only {promises} promises were found");
}
