//! Names, removing, pruning, and what is left by processes that died.

use std::collections::BTreeSet;
use std::fs;

use pulselet_image::{Digest, Image, ImageStore, ImageStoreError, Prune};
use serde_json::json;

use crate::builder::{Fixture, Layer, config, docker_archive, plain, root};

fn nothing() -> BTreeSet<Digest> {
    BTreeSet::new()
}

/// Loads an image with a common base and a layer of its own.
fn load(fixture: &Fixture, tag: &str, content: &str) -> Image {
    let layers = [
        Layer::new().file("base", "base").finish(),
        Layer::new().file("own", content).finish(),
    ];
    let archive = docker_archive(tag, &config(&layers, &json!({})), &layers, plain);
    fixture.store.load(archive.as_slice(), None).unwrap().remove(0)
}

#[test]
fn an_image_is_found_by_its_names_and_ids() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = load(&fixture, "app:1", "1");
    let id = image.id.to_string();
    let hex = image.id.hex();
    for name in [
        "app:1",
        "library/app:1",
        "docker.io/library/app:1",
        &id,
        &hex,
        &hex[..12],
    ] {
        let found = fixture.store.resolve(name).unwrap();
        assert_eq!(found.as_ref(), Some(&image), "{name}");
    }
    for name in ["app", "app:2", &hex[1..20], "other", &Digest::of(b"").to_string()] {
        assert_eq!(fixture.store.resolve(name).unwrap(), None, "{name}");
    }
    assert!(matches!(
        fixture.store.resolve("Not A Name"),
        Err(ImageStoreError::Reference(_))
    ));
}

#[test]
fn a_name_moves_to_the_image_that_was_loaded_last() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let old = load(&fixture, "app:1", "old");
    let new = load(&fixture, "app:1", "new");
    assert_eq!(fixture.store.resolve("app:1").unwrap().unwrap().id, new.id);
    assert_eq!(
        fixture
            .store
            .resolve(&old.id.to_string())
            .unwrap()
            .unwrap()
            .references,
        []
    );
    assert_eq!(old.layers[0], new.layers[0], "what they share is there once");
    let removed = fixture.store.prune(Prune::Untagged, &nothing()).unwrap();
    assert_eq!(removed.deleted, [old.id]);
    assert_eq!(removed.freed, 3);
    assert!(!old.layers[1].exists() && new.layers.iter().all(|layer| layer.exists()));
}

#[test]
fn removing_takes_a_name_first_and_the_image_with_the_last_one() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = load(&fixture, "app:1", "1");
    load(&fixture, "app:2", "1");
    let in_use = BTreeSet::from([image.id]);
    let removed = fixture.store.remove("app:1", &in_use).unwrap();
    assert_eq!(
        (removed.untagged.len(), removed.deleted.len()),
        (1, 0),
        "another name is left"
    );
    assert!(matches!(
        fixture.store.remove("app:2", &in_use),
        Err(ImageStoreError::InUse { .. })
    ));
    assert!(matches!(
        fixture.store.remove("app:1", &nothing()),
        Err(ImageStoreError::NotFound { .. })
    ));
    let removed = fixture.store.remove("app:2", &nothing()).unwrap();
    assert_eq!(removed.deleted, [image.id]);
    assert_eq!(removed.freed, 5);
    assert_eq!(fixture.store.list().unwrap(), []);
    assert!(image.layers.iter().all(|layer| !layer.exists()));
}

#[test]
fn an_id_stands_for_all_names() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = load(&fixture, "app:1", "1");
    load(&fixture, "app:2", "1");
    assert!(
        fixture
            .store
            .remove(&image.id.to_string(), &BTreeSet::from([image.id]))
            .is_err()
    );
    let removed = fixture.store.remove(&image.id.hex()[..12], &nothing()).unwrap();
    assert_eq!((removed.untagged.len(), removed.deleted), (2, vec![image.id]));
}

#[test]
fn pruning_spares_what_is_used() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let used = load(&fixture, "app:1", "1");
    let unused = load(&fixture, "app:2", "2");
    let removed = fixture.store.prune(Prune::Untagged, &nothing()).unwrap();
    assert_eq!(removed.deleted, []);
    let removed = fixture
        .store
        .prune(Prune::Unused, &BTreeSet::from([used.id]))
        .unwrap();
    assert_eq!(removed.deleted, [unused.id]);
    assert_eq!(fixture.store.list().unwrap(), [used]);
}

#[test]
fn what_dead_processes_left_is_removed_when_the_store_is_opened() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let image = load(&fixture, "app:1", "1");
    let before = fixture.paths();
    let images = fixture.directory.path().join("images");
    // A stage that nobody holds, a layer and a configuration that no image names.
    fs::create_dir_all(images.join("stages/1-2-3/layers/x")).unwrap();
    fs::write(images.join("stages/1-2-3/lock"), "").unwrap();
    let orphan = Digest::of(b"orphan").hex();
    fs::create_dir_all(images.join("layers").join(&orphan).join("fs/dir")).unwrap();
    fs::write(images.join("configs").join(&orphan), "").unwrap();
    fs::write(images.join("configs/half.new"), "").unwrap();
    let store = ImageStore::open(&images).unwrap();
    assert_eq!(fixture.paths(), before);
    assert_eq!(store.list().unwrap(), [image]);
}

#[test]
fn a_broken_index_is_an_error_and_stays() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    load(&fixture, "app:1", "1");
    let path = fixture.directory.path().join("images/images.json");
    fs::write(&path, "{").unwrap();
    assert!(matches!(fixture.store.list(), Err(ImageStoreError::Index(_))));
    assert!(
        ImageStore::open(path.parent().unwrap()).is_err(),
        "nothing is cleaned by a list that cannot be read"
    );
    assert_eq!(fs::read_to_string(path).unwrap(), "{");
}

#[test]
fn many_at_once_do_not_disturb_each_other() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                for round in 0..3 {
                    let tag = format!("app:{number}");
                    load(fixture, &tag, &format!("{number}-{round}"));
                    fixture.store.prune(Prune::Untagged, &nothing()).unwrap();
                }
            });
        }
    });
    let images = fixture.store.list().unwrap();
    assert_eq!(images.len(), 4);
    for image in images {
        assert!(
            image.layers.iter().all(|layer| layer.exists()),
            "{:?}",
            image.references
        );
        assert!(image.layers[0].join("base").exists());
    }
}
