//! Loading archives of every kind, and those that are broken.

use std::fs;

use pulselet_image::{ArchiveError, DocumentError};
use pulselet_image::{Digest, LayerError, Limits, LoadError, TarError};
use serde_json::{Value, json};
use tar::EntryType;

use crate::builder::{Fixture, Layer, config, docker_archive, gzip, oci_layout, plain, root, zstd};

fn layers() -> Vec<Vec<u8>> {
    vec![
        Layer::new().file("a", "below").finish(),
        Layer::new().file("b", "above").finish(),
    ]
}

fn run() -> Value {
    json!({
        "Env": ["PATH=/bin"], "Entrypoint": ["/a"], "Cmd": ["b"], "WorkingDir": "/w", "User": "1:2",
        "StopSignal": "SIGUSR2", "Volumes": {"/v": {}}, "Labels": {"k": "v"},
    })
}

/// Loading must fail and leave nothing visible.
fn load_error(archive: &[u8]) -> LoadError {
    let fixture = Fixture::new();
    let error = fixture
        .store
        .load(archive, None)
        .expect_err("the archive is refused");
    assert_eq!(fixture.store.list().unwrap(), []);
    assert_eq!(
        fs::read_dir(fixture.directory.path().join("images/layers"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(
        fs::read_dir(fixture.directory.path().join("images/stages"))
            .unwrap()
            .count(),
        0
    );
    error
}

#[test]
fn archives_of_every_kind_give_the_same_image() {
    if !root() {
        return;
    }
    let config = config(&layers(), &run());
    let name = json!({"io.containerd.image.name": "docker.io/library/test:1"});
    let mut ids = Vec::new();
    for (pack_layer, pack_archive) in [
        (plain as fn(&[u8]) -> Vec<u8>, plain as fn(&[u8]) -> Vec<u8>),
        (gzip, plain),
        (zstd, plain),
        (plain, gzip),
        (plain, zstd),
    ] {
        for archive in [
            docker_archive("test:1", &config, &layers(), pack_layer),
            oci_layout(&name, &config, &layers(), pack_layer),
        ] {
            let fixture = Fixture::new();
            let loaded = fixture
                .store
                .load(pack_archive(&archive).as_slice(), None)
                .unwrap();
            let image = fixture.store.resolve("test:1").unwrap().expect("it has its name");
            assert_eq!(loaded, std::slice::from_ref(&image));
            assert_eq!(image.references[0].to_string(), "docker.io/library/test:1");
            assert_eq!(fs::read_to_string(image.layers[0].join("a")).unwrap(), "below");
            assert_eq!(fs::read_to_string(image.layers[1].join("b")).unwrap(), "above");
            assert_eq!(image.size, 10);
            ids.push(image.id);
        }
    }
    ids.dedup();
    assert_eq!(ids, [Digest::of(config.to_string().as_bytes())]);
}

#[test]
fn the_configuration_is_told() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let archive = docker_archive("test:1", &config(&layers(), &run()), &layers(), plain);
    let config = fixture
        .store
        .load(archive.as_slice(), None)
        .unwrap()
        .remove(0)
        .config;
    assert_eq!(config.env, ["PATH=/bin"]);
    assert_eq!(
        (config.entrypoint, config.cmd),
        (vec!["/a".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(config.working_dir.as_deref(), Some("/w"));
    assert_eq!(config.user.as_deref(), Some("1:2"));
    assert_eq!(config.stop_signal.as_deref(), Some("SIGUSR2"));
    assert_eq!(config.volumes, ["/v"]);
    assert_eq!(config.labels["k"], "v");
    assert_eq!(config.os, "linux");
}

#[test]
fn a_layout_without_a_full_name_is_named_by_the_caller() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    let tag_only = json!({"org.opencontainers.image.ref.name": "latest"});
    let archive = oci_layout(&tag_only, &config(&layers(), &run()), &layers(), gzip);
    let image = fixture.store.load(archive.as_slice(), None).unwrap().remove(0);
    assert_eq!(image.references, []);
    let name = "example.com/app:2".parse().unwrap();
    fixture.store.load(archive.as_slice(), Some(&name)).unwrap();
    assert_eq!(
        fixture
            .store
            .resolve("example.com/app:2")
            .unwrap()
            .map(|image| image.id),
        Some(image.id)
    );
}

#[test]
fn links_in_an_archive_of_an_older_docker_are_followed() {
    if !root() {
        return;
    }
    let layers = layers();
    let config = config(&layers, &run()).to_string();
    let manifest = json!([{"Config": "c.json", "RepoTags": null, "Layers": ["x/layer.tar", "y/layer.tar"]}]);
    let archive = Layer::new()
        .entry(EntryType::Regular, "z/layer.tar", "", &layers[0], 0o644)
        .symlink("x/layer.tar", "../z/layer.tar")
        .entry(EntryType::Regular, "y/layer.tar", "", &layers[1], 0o644)
        .file("c.json", &config)
        .file("manifest.json", &manifest.to_string())
        .finish();
    let image = Fixture::new()
        .store
        .load(archive.as_slice(), None)
        .unwrap()
        .remove(0);
    assert_eq!(image.layers.len(), 2);
}

#[test]
fn a_cut_archive_is_refused_wherever_it_is_cut() {
    let archive = docker_archive("test:1", &config(&layers(), &run()), &layers(), plain);
    for cut in (1..archive.len() - 1024).step_by(701) {
        let error = load_error(&archive[..cut]);
        let expected = matches!(
            error,
            LoadError::Archive(ArchiveError::Tar(TarError::Truncated)) | LoadError::NotAnImage
        );
        assert!(expected, "{cut}: {error}");
    }
    let packed = gzip(&archive);
    assert!(matches!(
        load_error(&packed[..packed.len() / 2]),
        LoadError::Archive(ArchiveError::Tar(_))
    ));
}

#[test]
fn corrupt_content_is_refused() {
    if !root() {
        return;
    }
    let config = config(&layers(), &run());
    let other = vec![layers()[0].clone(), Layer::new().file("b", "changed").finish()];
    let error = load_error(&docker_archive("test:1", &config, &other, gzip));
    assert!(
        matches!(error, LoadError::Layer(LayerError::Corrupt { .. })),
        "{error}"
    );
    // The same bytes, then garbage after the end of the tar stream.
    let longer = vec![layers()[0].clone(), [layers()[1].as_slice(), b"garbage"].concat()];
    let error = load_error(&docker_archive("test:1", &config, &longer, plain));
    assert!(
        matches!(error, LoadError::Layer(LayerError::Corrupt { .. })),
        "{error}"
    );
    for needle in ["below", "StopSignal"] {
        let mut layout = oci_layout(&json!({}), &config, &layers(), plain);
        let at = layout
            .windows(needle.len())
            .position(|window| window == needle.as_bytes())
            .unwrap();
        layout[at] ^= 1;
        let error = load_error(&layout);
        assert!(matches!(error, LoadError::Corrupt { .. }), "{needle}: {error}");
    }
}

#[test]
fn damage_anywhere_is_an_error_or_harmless() {
    if !root() {
        return;
    }
    let archive = docker_archive("test:1", &config(&layers(), &run()), &layers(), gzip);
    let mut state = 1_u64;
    for _ in 0..100 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut damaged = archive.clone();
        let at = usize::try_from(state >> 33).unwrap() % damaged.len();
        damaged[at] ^= 1 << (state >> 29 & 7);
        let fixture = Fixture::new();
        let loaded = fixture.store.load(damaged.as_slice(), None);
        let visible = fixture.store.list().unwrap();
        // Names and settings may be other ones; the content of layers never is.
        assert_eq!(visible.len(), usize::from(loaded.is_ok()), "byte {at}");
        for image in visible {
            assert_eq!(
                fs::read_to_string(image.layers[1].join("b")).unwrap(),
                "above",
                "byte {at}"
            );
        }
    }
}

#[test]
fn what_is_no_image_is_refused() {
    assert!(matches!(load_error(b""), LoadError::NotAnImage));
    assert!(matches!(
        load_error(&Layer::new().file("a", "").finish()),
        LoadError::NotAnImage
    ));
    assert!(matches!(
        load_error(&[b'x'; 2000]),
        LoadError::Archive(ArchiveError::Tar(TarError::Header(_)))
    ));
    for (manifest, what) in [
        ("", "empty"),
        ("{}", "not a list"),
        (r#"[{"Config":"c.json"}]"#, "no configuration"),
        (r#"[{"Config":"../../etc/passwd","Layers":[]}]"#, "a path"),
    ] {
        let error = load_error(&Layer::new().file("manifest.json", manifest).finish());
        assert!(
            matches!(error, LoadError::Document(_) | LoadError::Missing { .. }),
            "{what}: {error}"
        );
    }
    let big = Layer::new().file("manifest.json", &" ".repeat(5 << 20)).finish();
    assert!(matches!(
        load_error(&big),
        LoadError::Archive(ArchiveError::DocumentTooLarge { .. })
    ));
    let fewer = docker_archive("test:1", &config(&layers(), &run()), &layers()[..1], plain);
    assert!(matches!(
        load_error(&fewer),
        LoadError::Document(DocumentError::LayersDiffer { .. })
    ));
}

#[test]
fn an_image_for_another_machine_is_refused() {
    let mut config = config(&layers(), &run());
    config["architecture"] = json!("s390x");
    let archives = [
        docker_archive("test:1", &config, &layers(), plain),
        oci_layout(&json!({}), &config, &layers(), plain),
    ];
    for archive in archives {
        let error = load_error(&archive);
        assert!(error.to_string().contains("linux/s390x"), "{error}");
    }
}

#[test]
fn a_bomb_stops_at_the_limit() {
    if !root() {
        return;
    }
    let limits = Limits {
        archive_bytes: 256 << 10,
        layer_bytes: 256 << 10,
        layer_entries: 10,
    };
    let fixture = Fixture::with_limits(limits);
    let load = |layer: Vec<u8>, pack| {
        let layers = [layer];
        let archive = docker_archive("test:1", &config(&layers, &Value::Null), &layers, pack);
        fixture
            .store
            .load(archive.as_slice(), None)
            .expect_err("it is refused")
    };
    // Zeros after the end, which take almost nothing compressed.
    let mut zeros = Layer::new().file("a", "").finish();
    zeros.resize(2 << 20, 0);
    for pack in [gzip as fn(&[u8]) -> Vec<u8>, zstd] {
        let error = load(zeros.clone(), pack);
        assert!(
            matches!(error, LoadError::Layer(LayerError::Read { .. })),
            "{error}"
        );
    }
    let error = load(Layer::new().file("a", &"x".repeat(512 << 10)).finish(), gzip);
    assert!(
        matches!(error, LoadError::Layer(LayerError::Unpack { .. })),
        "{error}"
    );
    let error = load(zeros, plain);
    assert!(
        matches!(error, LoadError::Archive(ArchiveError::TooLarge { .. })),
        "{error}"
    );
    assert_eq!(fixture.store.list().unwrap(), []);
}
