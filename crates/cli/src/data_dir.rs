//! Where an agent keeps its state if nobody says otherwise.

use std::path::{Path, PathBuf};

use pulselet_agent::Layout;
use pulselet_agent::control::Client;

use crate::cli::DataDirArgs;
use crate::exit::Failure;

/// The directory of the machine's own agent.
pub(crate) fn system() -> &'static Path {
    Path::new("/var/lib/pulselet")
}

impl DataDirArgs {
    pub(crate) fn resolve(&self) -> Result<PathBuf, Failure> {
        match &self.data_dir {
            Some(path) => Ok(path.clone()),
            None if rustix::process::geteuid().is_root() => Ok(system().to_owned()),
            None => of_user(),
        }
    }

    /// Talks to the agent that has the directory.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(Layout::new(self.resolve()?).socket()))
    }
}

fn of_user() -> Result<PathBuf, Failure> {
    let variable = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .map(|state| state.join("pulselet"))
        .ok_or_else(|| {
            Failure::environment("neither XDG_STATE_HOME nor HOME says where state belongs")
                .with_hint("name a directory with --data-dir")
        })
}
