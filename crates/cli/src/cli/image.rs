//! `pulselet image`: its subcommands and their flags.

use clap::{Args, Subcommand};
use pulselet_image::Reference;

use super::{DataDirArgs, OutputArgs};

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Load images from an archive: what `docker save` writes, or an OCI layout, compressed or not
    #[command(
        after_help = "Examples:\n  docker save app:1 | pulselet image load -\n  pulselet image load layout.tar.zst --tag app:1"
    )]
    Load(ImageLoadArgs),
    /// Pull an image from its registry
    #[command(
        after_help = "Examples:\n  pulselet image pull busybox\n  pulselet image pull localhost:5000/app:1\n\nCredentials \
                      come from docker's config.json. A pull that was interrupted goes on where it was."
    )]
    Pull(ImagePullArgs),
    /// List images
    #[command(after_help = "Example:\n  pulselet image ls")]
    Ls(ImageLsArgs),
    /// Remove names of images, and images that have no other
    #[command(after_help = "Examples:\n  pulselet image rm app:1\n  pulselet image rm 0123456789ab")]
    Rm(ImageRmArgs),
    /// Remove images that have no tag and are not used by a container
    #[command(after_help = "Examples:\n  pulselet image prune\n  pulselet image prune --all")]
    Prune(ImagePruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImageLoadArgs {
    /// The archive; `-` is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    /// Another name for the image
    #[arg(long, value_name = "NAME")]
    pub(crate) tag: Option<Reference>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImagePullArgs {
    /// The image, such as busybox, quay.io/org/app:1 or app@sha256:...
    #[arg(value_name = "IMAGE")]
    pub(crate) image: Reference,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImageLsArgs {
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRmArgs {
    /// Names or ids
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImagePruneArgs {
    /// All images that are not used by a container, those with a tag too
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
