//! The stdin of a process that clients type into: what the process has not read yet waits here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// Typed bytes that wait for the process to read them; above this, clients have to wait.
const MAX_TYPED: usize = 64 * 1024;

/// The writing end of a process's stdin with the bytes that are still to be written. The end does not block.
#[derive(Debug)]
pub(crate) struct StdinQueue {
    /// `None` if the process has no stdin, or it is closed.
    stdin: Option<OwnedFd>,
    typed: Vec<u8>,
    /// Close stdin once `typed` is empty.
    ending: bool,
}

impl StdinQueue {
    pub(crate) fn new(stdin: Option<OwnedFd>) -> Self {
        Self {
            stdin,
            typed: Vec::new(),
            ending: false,
        }
    }

    /// What to wait for to be writable; `None` if nothing waits.
    pub(crate) fn pending(&self) -> Option<BorrowedFd<'_>> {
        self.stdin
            .as_ref()
            .filter(|_| !self.typed.is_empty())
            .map(AsFd::as_fd)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.typed.len() < MAX_TYPED
    }

    /// Adds what a client has typed. A process without a stdin gets nothing.
    pub(crate) fn push(&mut self, data: &[u8]) {
        if self.stdin.is_some() {
            self.typed.extend_from_slice(data);
        }
    }

    /// No more will be typed: stdin is closed when the process has got everything.
    pub(crate) fn end(&mut self) {
        self.ending = true;
    }

    /// Gives the process as much as it takes now.
    pub(crate) fn flush(&mut self) {
        while let Some(stdin) = &self.stdin
            && !self.typed.is_empty()
        {
            match rustix::io::write(stdin, &self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.stdin = None;
                    self.typed = Vec::new();
                }
            }
        }
        if self.ending {
            self.stdin = None;
        }
    }
}
