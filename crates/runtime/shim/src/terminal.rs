//! A pseudo-terminal for a process that wants one.

use std::os::fd::OwnedFd;

use pulselet_runtime::TerminalSize;
use rustix::{
    io,
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

/// Our side and the process's side of a new terminal. It is one of the host's if there is no multiplexer.
pub(crate) fn open(multiplexer: Option<OwnedFd>) -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = match multiplexer {
        Some(opened) => opened,
        None => openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?,
    };
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(
        &ours,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    Ok((ours, theirs))
}

/// Sets the size of the terminal. One that is closed already has no size.
pub(crate) fn resize(ours: &OwnedFd, size: TerminalSize) {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let _ = tcsetwinsize(ours, size);
}
