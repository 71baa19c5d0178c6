//! Finding and running a program in the container's root, with the words users know for what goes wrong.

use std::{
    convert::Infallible,
    ffi::CString,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use pulselet_shim::reason;
use pulselet_sys::{replace_process, reset_signals};
use rustix::fs::Access;

/// Where programs are looked for if neither the image nor the pod says.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a program cannot be run. The texts are those that users know from other runtimes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("no command was given")]
    NoCommand,
    #[error("exec: {name:?}: executable file not found in $PATH")]
    NotInPath { name: String },
    #[error("exec: {name:?}: permission denied")]
    NotExecutable { name: String },
    #[error("exec: {name:?}: contains a zero byte")]
    ZeroByte { name: String },
    #[error("exec: {name:?}: {}", reason(source))]
    Execute { name: String, source: io::Error },
}

/// A complete command with its environment.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) command: &'a [String],
    pub(crate) env: &'a [(String, String)],
}

impl Program<'_> {
    /// Runs it in place of this process. Returns only why that is impossible.
    pub(crate) fn run(&self) -> Result<Infallible, ProgramError> {
        let name = self.command.first().ok_or(ProgramError::NoCommand)?;
        let path = self.find(name)?;
        let env = self.env.iter().map(|(name, value)| format!("{name}={value}"));
        let program = CString::new(path.as_os_str().as_bytes()).ok();
        let args: Option<Vec<CString>> = self
            .command
            .iter()
            .map(|word| CString::new(word.as_str()).ok())
            .collect();
        let env: Option<Vec<CString>> = env.map(|entry| CString::new(entry).ok()).collect();
        let name = name.clone();
        let (Some(program), Some(args), Some(env)) = (program, args, env) else {
            return Err(ProgramError::ZeroByte { name });
        };
        let source = match reset_signals() {
            Ok(()) => replace_process(&program, &args, &env),
            Err(error) => error,
        };
        Err(ProgramError::Execute { name, source })
    }

    /// A name with a slash is a path; any other is looked up.
    fn find(&self, name: &str) -> Result<PathBuf, ProgramError> {
        if name.contains('/') {
            return Ok(PathBuf::from(name));
        }
        let path = self
            .env
            .iter()
            .rev()
            .find(|(key, _)| key == "PATH")
            .map_or(DEFAULT_PATH, |(_, path)| path);
        let mut denied = false;
        for directory in path.split(':').filter(|directory| !directory.is_empty()) {
            let candidate = Path::new(directory).join(name);
            match rustix::fs::access(&candidate, Access::EXEC_OK) {
                Ok(()) if candidate.is_file() => return Ok(candidate),
                Err(rustix::io::Errno::ACCESS) => denied = true,
                Ok(()) | Err(_) => {}
            }
        }
        let name = name.to_owned();
        Err(if denied {
            ProgramError::NotExecutable { name }
        } else {
            ProgramError::NotInPath { name }
        })
    }
}
