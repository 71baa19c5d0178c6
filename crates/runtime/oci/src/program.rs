//! Finding and running a program in the container's root, with the words users know for what goes wrong.

use std::{
    ffi::CString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use pulselet_shim::reason;
use pulselet_sys::{replace_process, reset_signals};
use rustix::fs::Access;

/// Where programs are looked for if neither the image nor the pod says.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A complete command with its environment.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) command: &'a [String],
    pub(crate) env: &'a [(String, String)],
}

impl Program<'_> {
    /// Runs it in place of this process. Returns only why that is impossible.
    pub(crate) fn run(&self) -> String {
        let Some(name) = self.command.first() else {
            return "no command was given".to_owned();
        };
        let path = match self.find(name) {
            Ok(path) => path,
            Err(message) => return message,
        };
        let env: Vec<String> = self
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let text = |text: &str| CString::new(text).ok();
        let program = CString::new(path.as_os_str().as_bytes()).ok();
        let args: Option<Vec<CString>> = self.command.iter().map(|word| text(word)).collect();
        let env: Option<Vec<CString>> = env.iter().map(|entry| text(entry)).collect();
        let (Some(program), Some(args), Some(env)) = (program, args, env) else {
            return format!("exec: {name:?}: contains a zero byte");
        };
        let error = match reset_signals() {
            Ok(()) => replace_process(&program, &args, &env),
            Err(error) => error,
        };
        format!("exec: {name:?}: {}", reason(&error))
    }

    /// A name with a slash is a path; any other is looked up.
    fn find(&self, name: &str) -> Result<PathBuf, String> {
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
        Err(if denied {
            format!("exec: {name:?}: permission denied")
        } else {
            format!("exec: {name:?}: executable file not found in $PATH")
        })
    }
}
