//! One client of the socket: frames in and out without ever blocking.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::{event::PollFlags, io::Errno};

use crate::protocol::{Channel, FrameTooLarge, LENGTH_BYTES, Reply, frame_length, put_frame, to_json};

/// Bytes read from a client at a time: more than most requests have.
const READ_CHUNK: usize = 4 * 1024;

/// Bytes of memory for answers that a client keeps.
const KEPT_OUTBOX: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct Connection {
    socket: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The client sends no more, or the socket failed.
    ended: bool,
}

impl Connection {
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            inbox: Vec::new(),
            outbox: Vec::new(),
            ended: false,
        })
    }

    /// What to poll for. `reading` is false when the caller cannot take more.
    pub(crate) fn interest(&self, reading: bool) -> PollFlags {
        let mut flags = PollFlags::empty();
        if reading && !self.ended {
            flags |= PollFlags::IN;
        }
        if !self.outbox.is_empty() {
            flags |= PollFlags::OUT;
        }
        flags
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Has nothing more to do with this client.
    pub(crate) fn hang_up(&mut self) {
        self.ended = true;
    }

    /// The same connection for another owner; this one has ended. Both share the socket, so closing this side closes
    /// nothing for the other.
    pub(crate) fn hand_over(&mut self) -> io::Result<Self> {
        let socket = self.socket.try_clone()?;
        self.ended = true;
        Ok(Self {
            socket,
            inbox: std::mem::take(&mut self.inbox),
            outbox: std::mem::take(&mut self.outbox),
            ended: false,
        })
    }

    /// Bytes that the client has not yet taken.
    pub(crate) fn backlog(&self) -> usize {
        self.outbox.len()
    }

    /// Takes what the client has sent, once.
    pub(crate) fn fill(&mut self) {
        let mut chunk = [0; READ_CHUNK];
        match rustix::io::read(&self.socket, &mut chunk) {
            Ok(0) => self.ended = true,
            Ok(count) => self.inbox.extend_from_slice(&chunk[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.ended = true,
        }
    }

    pub(crate) fn next_frame(&mut self) -> Result<Option<Vec<u8>>, FrameTooLarge> {
        let Some(prefix) = self.inbox.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let end = LENGTH_BYTES + frame_length(*prefix)?;
        if self.inbox.len() < end {
            return Ok(None);
        }
        let rest = self.inbox.split_off(end);
        let mut frame = std::mem::replace(&mut self.inbox, rest);
        frame.drain(..LENGTH_BYTES);
        Ok(Some(frame))
    }

    pub(crate) fn send(&mut self, reply: &Reply) {
        self.send_raw(&[&to_json(reply)]);
    }

    pub(crate) fn send_stream(&mut self, channel: Channel, data: &[u8]) {
        self.send_raw(&[&[channel.byte()], data]);
    }

    pub(crate) fn send_raw(&mut self, parts: &[&[u8]]) {
        put_frame(&mut self.outbox, parts);
        self.flush();
    }

    /// Gives the client as much as it takes now.
    pub(crate) fn flush(&mut self) {
        while !self.outbox.is_empty() {
            match rustix::io::write(&self.socket, &self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.ended = true;
                    self.outbox = Vec::new();
                }
            }
        }
        self.outbox.shrink_to(KEPT_OUTBOX);
    }

    /// Waits a bounded while for the client to take everything.
    pub(crate) fn finish(mut self, patience: Duration) {
        if self.outbox.is_empty() || self.socket.set_nonblocking(false).is_err() {
            return;
        }
        if self.socket.set_write_timeout(Some(patience)).is_ok() {
            self.flush();
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
