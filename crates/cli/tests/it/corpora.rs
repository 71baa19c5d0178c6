//! What fuzzers found once is tried again by every test run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::command::repository;

type Target = (&'static str, fn(&[u8]));

/// As the fuzzer has them in `fuzz/src/main.rs`.
fn targets() -> Vec<Target> {
    let all = [
        pulselet_agent::fuzzing::TARGETS,
        pulselet_apiserver::fuzzing::TARGETS,
        pulselet_cri_server::fuzzing::TARGETS,
        pulselet_image::fuzzing::TARGETS,
        pulselet_probe::fuzzing::TARGETS,
        pulselet_runtime_oci::fuzzing::TARGETS,
        pulselet_shim::fuzzing::TARGETS,
        pulselet_shim_client::fuzzing::TARGETS,
        pulselet_streaming::fuzzing::TARGETS,
    ];
    all.into_iter().flatten().copied().collect()
}

#[test]
fn what_fuzzers_found_does_no_harm() {
    let corpora = Path::new(repository()).join("fuzz/corpus");
    for (name, target) in targets() {
        let files = fs::read_dir(corpora.join(name)).expect(name);
        let mut count = 0;
        for file in files {
            let path = file.expect("an entry").path();
            // Shown with the panic that follows, if one does.
            println!("{}", path.display());
            target(&fs::read(&path).expect("reads"));
            count += 1;
        }
        assert!(count > 0, "the corpus of {name} is empty");
    }
}

#[test]
fn every_corpus_has_its_target_and_stays_small() {
    let corpora = Path::new(repository()).join("fuzz/corpus");
    let mut names = BTreeSet::new();
    let mut bytes = 0;
    for corpus in fs::read_dir(corpora).expect("lists") {
        let corpus = corpus.expect("an entry");
        names.insert(corpus.file_name().to_string_lossy().into_owned());
        for file in fs::read_dir(corpus.path()).expect("lists") {
            bytes += file.expect("an entry").metadata().expect("is there").len();
        }
    }
    let known: BTreeSet<String> = targets().iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names, known, "left: fuzz/corpus, right: targets");
    assert!(bytes < 1 << 20, "{bytes} bytes are too many for a repository");
}
