//! The flags of `pulselet cri`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use pulselet_image::RegistryMirror;

use crate::paths;

/// Where a server of CRI listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CriSocket(pub(crate) PathBuf);

impl FromStr for CriSocket {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = text.strip_prefix("unix://").map(PathBuf::from);
        path.filter(|path| path.is_absolute())
            .map(Self)
            .ok_or("a socket is given as unix:// and an absolute path, such as unix:///run/pulselet/cri.sock")
    }
}

#[derive(Debug, Args)]
pub(crate) struct CriArgs {
    /// The socket to listen at
    #[arg(long, value_name = "SOCKET", default_value = "unix:///run/pulselet/cri.sock")]
    pub(crate) listen: CriSocket,
    /// Where the server keeps containers and images; no agent may use the same directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/pulselet-cri", value_parser = paths::parser())]
    pub(crate) data_dir: PathBuf,
    /// Where the streams of exec, attach and port-forward are served; port 0 is one that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) stream_listen: SocketAddr,
    /// Connect pods by the built-in bridge, without CNI plugins
    #[arg(long, conflicts_with_all = ["cni_conf_dir", "cni_bin_dir"])]
    pub(crate) bridge: bool,
    /// A directory of CNI configurations, of which the first by name connects the pods; it may be filled later
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d", value_parser = paths::parser())]
    pub(crate) cni_conf_dir: PathBuf,
    /// Where CNI plugins are, separated by colons
    #[arg(
        long,
        value_name = "DIRS",
        value_delimiter = ':',
        value_parser = paths::parser(),
        default_value = "/opt/cni/bin:/usr/lib/cni"
    )]
    pub(crate) cni_bin_dir: Vec<PathBuf>,
    /// Ask a mirror before the registry it stands for, such as `docker.io=https://mirror.example.com`; repeat for more
    #[arg(long, value_name = "REGISTRY=URL")]
    pub(crate) registry_mirror: Vec<RegistryMirror>,
    /// Tell the kubelet not to remove the image of this name; repeat for more
    #[arg(long, value_name = "IMAGE")]
    pub(crate) pinned_image: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_from_the_root() {
        assert_eq!("unix:///run/x.sock".parse(), Ok(CriSocket("/run/x.sock".into())));
        for wrong in ["/run/x.sock", "unix://x", "tcp://1", "unix://", ""] {
            assert!(wrong.parse::<CriSocket>().is_err(), "{wrong}");
        }
    }
}
