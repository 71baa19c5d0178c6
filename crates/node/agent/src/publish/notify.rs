//! Notifying systemd of the agent's state: readiness, the watchdog, the end.
//!
//! The protocol is one datagram per message to the socket that `NOTIFY_SOCKET` names. Without it nothing is sent.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager's socket, and how often it wants to be notified.
#[derive(Debug)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads `NOTIFY_SOCKET` and `WATCHDOG_USEC` as given; a caller passes what its environment has.
    pub fn new(socket: Option<&str>, watchdog_usec: Option<&str>) -> Self {
        Self {
            socket: socket.and_then(connect),
            // Half of what is allowed, so that one lost turn does no harm.
            watchdog: watchdog_usec
                .and_then(|text| text.parse().ok())
                .filter(|micros| *micros > 0)
                .map(|micros| Duration::from_micros(micros) / 2),
        }
    }

    /// How often [`ServiceManager::alive`] is expected.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some())
    }

    pub fn ready(&self) {
        self.send("READY=1");
    }

    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::warn!(%error, message, "cannot notify the service manager");
        }
    }
}

fn connect(name: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    match (address, socket) {
        (Ok(address), Ok(socket)) => Some((socket, address)),
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, name, "cannot use the service manager's socket");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_at_the_named_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::new(path.to_str(), Some("2000000"));
        assert_eq!(manager.watchdog(), Some(Duration::from_secs(1)));
        manager.ready();
        manager.alive();
        manager.stopping();
        let mut buffer = [0; 64];
        for expected in ["READY=1", "WATCHDOG=1", "STOPPING=1"] {
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], expected.as_bytes());
        }
    }

    #[test]
    fn without_a_socket_nothing_is_expected() {
        let manager = ServiceManager::new(None, Some("2000000"));
        assert_eq!(manager.watchdog(), None);
        manager.ready();
        ServiceManager::new(Some("/nowhere/there"), None).ready();
    }
}
