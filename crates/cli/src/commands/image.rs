//! `pulselet image`: the built-in runtime's images. It works on the store itself, with or without an agent.

mod progress;

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pulselet_image::{
    Auth, Digest, DockerConfig, Image, ImageStore, ImageStoreError, ImageStoreErrorKind, LoadError, Prune,
    PullError, Reference, Removed, SHORT_ID_DIGITS, UnpackError,
};
use serde_json::{Value, json};

use crate::agent;
use crate::cli::{
    DataDirArgs, ImageArgs, ImageCommand, ImageLoadArgs, ImageLsArgs, ImagePruneArgs, ImagePullArgs,
    ImageRmArgs,
};
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::output::{self, BOLD, Format, RESET};
use crate::runtime::BuiltIn;

const DENIED_HINT: &str = "images belong to root; use sudo, or name another --data-dir";
const FULL_HINT: &str = "`pulselet image prune --all` removes what no container uses";
const HEADINGS: [&str; 3] = ["IMAGE", "ID", "SIZE"];

pub(crate) fn run(args: &ImageArgs) -> Result<Exit, Failure> {
    match &args.command {
        ImageCommand::Load(args) => load(args),
        ImageCommand::Pull(args) => pull(args),
        ImageCommand::Ls(args) => ls(args),
        ImageCommand::Rm(args) => rm(args),
        ImageCommand::Prune(args) => prune(args),
    }
}

/// The images that belong to a data directory.
pub(crate) fn open_store(data_dir: &Path) -> Result<ImageStore, Failure> {
    ImageStore::open(data_dir.join("images")).map_err(|error| store_failure(&error))
}

fn load(args: &ImageLoadArgs) -> Result<Exit, Failure> {
    needs_root()?;
    let (_, store) = open(&args.data)?;
    let name = args.tag.as_ref();
    let loaded = if args.file == "-" {
        store.load(io::stdin(), name)
    } else {
        store.load_file(Path::new(&args.file), name)
    };
    let images = loaded.map_err(|error| load_failure(&args.file, &error))?;
    print(
        args.output.output,
        |out| {
            for image in &images {
                for name in names(image) {
                    writeln!(out, "Loaded {name}")?;
                }
            }
            Ok(())
        },
        || images.iter().map(describe).collect(),
    )
}

fn pull(args: &ImagePullArgs) -> Result<Exit, Failure> {
    needs_root()?;
    let (_, store) = open(&args.data)?;
    let pulled = agent::small_executor()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let auth = auth(&args.image).await?;
        let (progress, shown) = progress::start();
        let pulled = tokio::select! {
            pulled = store.pull(&args.image, auth, progress) => pulled.map(Some),
            () = interrupts.next() => Ok(None),
        };
        shown.finish();
        pulled.map_err(|error| pull_failure(&args.image, &error))
    })?;
    let Some(image) = pulled else {
        return Ok(Exit::Interrupted);
    };
    print(
        args.output.output,
        |out| writeln!(out, "Pulled {} ({})", args.image, short_id(&image)),
        || vec![describe(&image)],
    )
}

fn ls(args: &ImageLsArgs) -> Result<Exit, Failure> {
    let (_, store) = open(&args.data)?;
    let images = store.list().map_err(|error| store_failure(&error))?;
    print(
        args.output.output,
        |out| print_table(out, &images),
        || images.iter().map(describe).collect(),
    )
}

fn rm(args: &ImageRmArgs) -> Result<Exit, Failure> {
    let (data_dir, store) = open(&args.data)?;
    let mut worst = Exit::Done;
    let mut done = Vec::new();
    for name in &args.images {
        // One that cannot be removed does not keep the others.
        let removed = in_use(&data_dir).and_then(|in_use| {
            let removed = store.remove(name, &in_use);
            removed.map_err(|error| store_failure(&error))
        });
        match removed {
            Ok(removed) => done.push(removed),
            Err(failure) => worst = worst.max(failure.report()),
        }
    }
    print_removed(args.output.output, &done)?;
    Ok(worst)
}

fn prune(args: &ImagePruneArgs) -> Result<Exit, Failure> {
    let (data_dir, store) = open(&args.data)?;
    let what = if args.all { Prune::Unused } else { Prune::Untagged };
    let removed = store
        .prune(what, &in_use(&data_dir)?)
        .map_err(|error| store_failure(&error))?;
    let freed = size(removed.freed);
    print_removed(args.output.output, &[removed])?;
    if args.output.output == Format::Text {
        output::note(&format!("{freed} freed"));
    }
    Ok(Exit::Done)
}

fn open(args: &DataDirArgs) -> Result<(PathBuf, ImageStore), Failure> {
    let data_dir = args.resolve()?;
    let store = open_store(&data_dir)?;
    Ok((data_dir, store))
}

/// What containers of this directory were made from.
fn in_use(data_dir: &Path) -> Result<BTreeSet<Digest>, Failure> {
    pulselet_runtime_oci::images_in_use(&BuiltIn::Oci.root(data_dir))
        .map_err(|error| Failure::environment(format_args!("cannot tell which images are in use: {error}")))
}

/// Layers have files of any owner, which only root can make.
fn needs_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::environment("unpacking an image needs root")
        .with_hint("use sudo; pods run with --runtime process need no images"))
}

async fn auth(image: &Reference) -> Result<Auth, Failure> {
    let Some(path) = DockerConfig::default_path() else {
        return Ok(Auth::Anonymous);
    };
    let found = match DockerConfig::read(&path) {
        Ok(config) => config.auth(image.registry()).await,
        Err(error) => Err(error),
    };
    found.map_err(|error| {
        Failure::environment(error).with_hint(format_args!(
            "`docker login` without a credential helper writes what is needed into {}",
            path.display()
        ))
    })
}

/// Text and JSON of the same; JSON has a line for each value.
fn print(
    format: Format,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    values: impl FnOnce() -> Vec<Value>,
) -> Result<Exit, Failure> {
    let mut out = output::stdout();
    let written = match format {
        Format::Text => text(&mut out),
        Format::Json => values().iter().try_for_each(|value| writeln!(out, "{value}")),
    };
    output::written(written.and_then(|()| out.flush()))?;
    Ok(Exit::Done)
}

fn print_removed(format: Format, removed: &[Removed]) -> Result<Exit, Failure> {
    let text = |out: &mut dyn Write| {
        for removed in removed {
            for name in &removed.untagged {
                writeln!(out, "Untagged {}", name.familiar())?;
            }
            for id in &removed.deleted {
                writeln!(out, "Deleted {id}")?;
            }
        }
        Ok(())
    };
    let value = |removed: &Removed| json!({"untagged": removed.untagged, "deleted": removed.deleted, "freed": removed.freed});
    print(format, text, || removed.iter().map(value).collect())
}

fn describe(image: &Image) -> Value {
    json!({
        "id": image.id,
        "references": image.references,
        "digests": image.digests,
        "size": image.size,
        "layers": image.layers.len(),
        "os": image.config.os,
        "architecture": image.config.architecture,
    })
}

fn print_table(out: &mut dyn Write, images: &[Image]) -> io::Result<()> {
    let rows: Vec<(String, String, String)> = images
        .iter()
        .flat_map(|image| {
            names(image)
                .into_iter()
                .map(|name| (name, short_id(image), size(image.size)))
        })
        .collect();
    let width = rows
        .iter()
        .map(|(name, ..)| name.chars().count())
        .chain([HEADINGS[0].len()])
        .max()
        .unwrap_or_default();
    let [name, id, bytes] = HEADINGS;
    writeln!(out, "{BOLD}{name:width$}  {id:SHORT_ID_DIGITS$}  {bytes}{RESET}")?;
    for (name, id, bytes) in rows {
        writeln!(out, "{name:width$}  {id}  {bytes}")?;
    }
    Ok(())
}

/// What an image is called; one without a tag by its digest, or else by its id.
fn names(image: &Image) -> Vec<String> {
    let tags = image.references.iter();
    let names: Vec<_> = tags
        .chain(image.digests.iter().filter(|_| image.references.is_empty()))
        .collect();
    if names.is_empty() {
        return vec![image.id.to_string()];
    }
    names.into_iter().map(Reference::familiar).collect()
}

fn short_id(image: &Image) -> String {
    image.id.hex()[..SHORT_ID_DIGITS].to_owned()
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Whether an error, or what is behind it, is that we may not or that the disk is full.
fn environment_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(UnpackError::NoSpace) = error.downcast_ref() {
            return Some(FULL_HINT);
        }
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::PermissionDenied) => return Some(DENIED_HINT),
            Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => return Some(FULL_HINT),
            _ => next = error.source(),
        }
    }
    None
}

fn store_failure(error: &ImageStoreError) -> Failure {
    match error.kind() {
        ImageStoreErrorKind::NotFound => {
            Failure::no(error).with_hint("`pulselet image ls` lists what is there")
        }
        ImageStoreErrorKind::InUse => {
            Failure::no(error).with_hint("stop its pods first; `pulselet ps` lists them")
        }
        ImageStoreErrorKind::BadName => Failure::usage(error),
        ImageStoreErrorKind::Storage => environment(error),
    }
}

fn environment(error: &(dyn Error + 'static)) -> Failure {
    let failure = Failure::environment(error);
    match environment_hint(error) {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

fn load_failure(file: &str, error: &LoadError) -> Failure {
    match error {
        LoadError::Open { .. } => Failure::usage(error),
        LoadError::Store(error) => store_failure(error),
        LoadError::WrongPlatform { .. } => Failure::no(format_args!("{file}: {error}")),
        LoadError::Layer(_) | LoadError::Archive(_) if environment_hint(error).is_some() => {
            environment(error)
        }
        LoadError::NotAnImage => Failure::usage(format_args!("{file}: {error}"))
            .with_hint("`docker save` and `skopeo copy ... oci-archive:` write what can be loaded"),
        LoadError::Archive(_)
        | LoadError::Missing { .. }
        | LoadError::Corrupt { .. }
        | LoadError::TooManyImages
        | LoadError::SeveralToName { .. }
        | LoadError::Name(_)
        | LoadError::Document(_)
        | LoadError::Layer(_) => Failure::usage(format_args!("{file}: {error}")),
    }
}

fn pull_failure(image: &Reference, error: &PullError) -> Failure {
    let message = format!("cannot pull {}: {error}", image.familiar());
    if error.is_denied() {
        return Failure::no(message)
            .with_hint(format_args!("log in with `docker login {}`", image.registry()));
    }
    if let Some(hint) = environment_hint(error) {
        return Failure::environment(message).with_hint(hint);
    }
    match error {
        PullError::Registry(_) if error.is_not_found() => {
            Failure::no(message).with_hint("look at the name and tag; private images need `docker login`")
        }
        PullError::NoPlatform { .. }
        | PullError::WrongPlatform { .. }
        | PullError::Document(_)
        | PullError::ConfigTooLarge { .. }
        | PullError::Layer(_) => Failure::no(message),
        PullError::Registry(_) | PullError::Download(_) | PullError::Store(_) | PullError::Interrupted => {
            Failure::environment(message)
        }
    }
}
