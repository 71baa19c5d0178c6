//! Starting many shims from one process.
//!
//! Before a program's first line the kernel and the loader settle where everything in it is, which for a large one takes
//! longer than all that a shim does to start, and leaves each process a copy of what was settled. So the agent runs the
//! program once, as a starter, and shims are copies of that: they share what none of them changes. A starter knows
//! nothing and lives as long as somebody may ask it; without one the program is run for each shim.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use pulselet_sys::{Fork, SoleThread, heed_children, ignore_children, replace_last_argument};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::thread::set_name;

use crate::handshake::{Handshake, report_to};

/// Set for a process that is to be a starter. Its stdin is the socket of the agent, on which every message is a request.
pub const STARTER_VARIABLE: &str = "PULSELET_SHIM_STARTER";

/// The names of a starter and of its shims in lists of processes.
const NAME: &CStr = c"pulselet-start";
pub const SHIM_NAME: &CStr = c"pulselet-mon";

/// Bytes of a container's directory; the kernel takes no longer path.
const MAX_PATH: usize = 4096;
/// Descriptors that come with a request, at most.
const DESCRIPTORS: usize = 3;

/// What an agent asks a starter for: the shim of one container.
#[derive(Debug)]
pub struct StartRequest<'a> {
    pub dir: &'a Path,
    /// Where the shim reports, as on the stdout of a shim that the agent runs itself.
    pub report: OwnedFd,
    /// Its stderr.
    pub errors: OwnedFd,
    /// A cgroup of version 2 in which it begins.
    pub cgroup: Option<OwnedFd>,
}

impl StartRequest<'_> {
    /// Asks, without waiting: whoever has too many requests already is as good as gone.
    pub fn send(&self, starter: impl AsFd) -> io::Result<()> {
        let mut streams = vec![self.report.as_fd(), self.errors.as_fd()];
        streams.extend(self.cgroup.as_ref().map(|cgroup| cgroup.as_fd()));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&streams)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let path = self.dir.as_os_str().as_bytes();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(starter, &[IoSlice::new(path)], &mut control, flags)?;
        if sent < path.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

/// Whether this process was started to be a starter.
pub fn is_starter() -> bool {
    std::env::var_os(STARTER_VARIABLE).is_some()
}

/// Starts shims until the agent is gone. Returns in each of them, too: with what `become_shim` returns.
pub fn serve_starts(become_shim: impl FnOnce(PathBuf) -> ExitCode) -> ExitCode {
    match next_shim() {
        Ok(Some(dir)) => become_shim(dir),
        Ok(None) => ExitCode::SUCCESS,
        // The agent runs its shims itself from now on.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns in every new process, with the directory of its container; in the starter when there is nobody to ask it.
fn next_shim() -> io::Result<Option<PathBuf>> {
    let sole = SoleThread::check()?;
    // Only people read it.
    let _ = set_name(NAME);
    // A shim is gone when it has ended: nobody here waits for it.
    ignore_children()?;
    while let Some(request) = Received::next()? {
        match request.fork(&sole) {
            Ok(Fork::Parent { .. }) => {}
            Ok(Fork::Child) => {
                heed_children()?;
                let _ = set_name(SHIM_NAME);
                return request.begin(&sole).map(Some);
            }
            Err(error) => {
                let detail = format!("cannot fork: {error}");
                report_to(&mut File::from(request.report), &Handshake::Failed { detail });
            }
        }
    }
    Ok(None)
}

/// A request that has come.
struct Received {
    dir: PathBuf,
    report: OwnedFd,
    errors: OwnedFd,
    cgroup: Option<OwnedFd>,
}

impl Received {
    fn fork(&self, sole: &SoleThread) -> io::Result<Fork> {
        let inside = self.cgroup.as_ref().map(|cgroup| sole.fork_into(cgroup.as_fd()));
        match inside {
            Some(Ok(forked)) => Ok(forked),
            // The shim goes there itself.
            Some(Err(_)) | None => sole.fork(),
        }
    }

    /// Waits for it; `None` when the agent is gone.
    fn next() -> io::Result<Option<Self>> {
        let mut path = vec![0; MAX_PATH];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut path)];
        let message = recvmsg(
            rustix::stdio::stdin(),
            slices,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        if message.bytes == 0 {
            return Ok(None);
        }
        let mut streams = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(streams) => streams.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let (Some(report), Some(errors)) = (streams.next(), streams.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let cgroup = streams.next();
        drop(streams);
        path.truncate(message.bytes);
        Ok(Some(Self {
            cgroup,
            dir: std::ffi::OsString::from_vec(path).into(),
            report,
            errors,
        }))
    }

    /// Makes this process what the agent would have run: with the streams and the last argument of the request.
    fn begin(self, sole: &SoleThread) -> io::Result<PathBuf> {
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        rustix::stdio::dup2_stdout(&self.report)?;
        rustix::stdio::dup2_stderr(&self.errors)?;
        // Only people read it.
        let _ = replace_last_argument(sole, self.dir.as_os_str().as_bytes());
        Ok(self.dir)
    }
}
