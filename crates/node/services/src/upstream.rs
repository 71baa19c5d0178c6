//! The machine's own resolvers, which know all names that are not ours.
//!
//! Requests are passed on as they came, with another number, over the transport they came by: a client that gets a truncated
//! answer asks again by TCP itself. What must always hold: our own address is never asked, and every wait ends.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use crate::answer::Transport;

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Bytes that are read of it: far more than it has.
const MAX_FILE: u64 = 1 << 16;
/// How long what it says is believed: networks change.
const BELIEVE: Duration = Duration::from_secs(5);
/// Resolvers that are asked, one after the other, as the C library does.
const MAX_SERVERS: usize = 3;
/// How long each may take. All of them together are a little longer than most clients wait.
const PATIENCE: Duration = Duration::from_secs(2);
const PORT: u16 = 53;
/// A datagram of DNS is never longer.
const MAX_DATAGRAM: usize = 4_096;
/// Bytes of a message's header, and what follows a name in a question.
const HEADER: usize = 12;
const KIND_AND_CLASS: usize = 4;
const IS_ANSWER: u8 = 0x80;

/// Where requests for names elsewhere go.
#[derive(Debug)]
pub struct Upstream {
    source: Source,
    /// The address at which we listen ourselves.
    own: IpAddr,
    read: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

#[derive(Debug)]
enum Source {
    File(PathBuf),
    Fixed(Vec<SocketAddr>),
}

impl Upstream {
    /// The resolvers that the machine has, for a server that listens at `own`.
    pub fn of_machine(own: Ipv4Addr) -> Self {
        Self {
            source: Source::File(RESOLV_CONF.into()),
            own: own.into(),
            read: Mutex::default(),
        }
    }

    /// These resolvers, whatever the machine has.
    pub fn fixed(servers: Vec<SocketAddr>, own: IpAddr) -> Self {
        Self {
            source: Source::Fixed(servers),
            own,
            read: Mutex::default(),
        }
    }

    fn servers(&self) -> Vec<SocketAddr> {
        let path = match &self.source {
            Source::Fixed(servers) => return servers.clone(),
            Source::File(path) => path,
        };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        match read.as_ref() {
            Some((at, servers)) if at.elapsed() < BELIEVE => servers.clone(),
            Some(_) | None => {
                let servers = parse(&text(path), self.own);
                *read = Some((Instant::now(), servers.clone()));
                servers
            }
        }
    }

    /// The answer of the first resolver that gives one; `None` if none does.
    pub(crate) async fn ask(&self, request: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let mut request = request.to_vec();
        let [high, low, ..] = *request.as_slice() else {
            return None;
        };
        for server in self.servers() {
            // A number of its own, so that nobody who knows the pod's can answer in the resolver's place.
            request.splice(..2, rand::random::<[u8; 2]>());
            let asked = async {
                match transport {
                    Transport::Udp => by_udp(server, &request).await,
                    Transport::Tcp => by_tcp(server, &request).await,
                }
            };
            if let Ok(Ok(mut answer)) = timeout(PATIENCE, asked).await {
                answer.splice(..2, [high, low]);
                return Some(answer);
            }
        }
        None
    }
}

fn text(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(text)
    };
    read().unwrap_or_default()
}

fn parse(text: &str, own: IpAddr) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse::<IpAddr>().ok())?
    };
    let servers = text.lines().filter_map(server).filter(|server| *server != own);
    servers
        .take(MAX_SERVERS)
        .map(|server| SocketAddr::new(server, PORT))
        .collect()
}

/// Every request has a socket of its own, and so a port that is hard to guess.
async fn by_udp(server: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(request).await?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let count = socket.recv(&mut buffer).await?;
        if answers(request, &buffer[..count]) {
            buffer.truncate(count);
            return Ok(buffer);
        }
    }
}

async fn by_tcp(server: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(request.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), request].concat())
        .await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    if answers(request, &answer) {
        Ok(answer)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Whether a message is the answer to a request: the same number and the same question.
fn answers(request: &[u8], answer: &[u8]) -> bool {
    let is_answer = answer.get(2).is_some_and(|flags| flags & IS_ANSWER != 0);
    let same_question = match (question(request), question(answer)) {
        (Some(asked), Some(answered)) => asked.eq_ignore_ascii_case(answered),
        // Some resolvers leave the question out where they refuse.
        (_, None) => answer.get(4..6) == Some(&[0, 0]),
        (None, Some(_)) => false,
    };
    is_answer && request.get(..2) == answer.get(..2) && same_question
}

/// The bytes of the first question, whose name is never compressed.
fn question(message: &[u8]) -> Option<&[u8]> {
    if message.get(4..6)? == [0, 0] {
        return None;
    }
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1 + length;
        if length == 0 {
            break;
        }
    }
    message.get(HEADER..at + KIND_AND_CLASS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_resolvers_are_asked_and_we_are_not() {
        let text = "# by hand\nsearch lan\nnameserver 10.88.0.1\nnameserver 127.0.0.53\nnameserver x\nnameserver ::1\n\
                    nameserver 192.0.2.1\nnameserver 192.0.2.2\n";
        let servers = parse(text, IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1)));
        let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["127.0.0.53:53", "[::1]:53", "192.0.2.1:53"]);
    }

    #[test]
    fn an_answer_has_the_number_and_the_question_of_its_request() {
        let request = b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01";
        let changed = |at: usize, value: u8| {
            let mut answer = request.to_vec();
            answer[2] = IS_ANSWER;
            answer[at] = value;
            answer
        };
        assert!(answers(request, &changed(3, 0)));
        assert!(answers(request, &changed(13, b'A')));
        for (at, value) in [(1, 9), (2, 0), (13, b'b'), (16, 28)] {
            assert!(!answers(request, &changed(at, value)), "{at}");
        }
        assert!(!answers(request, &changed(12, 200)), "a name beyond the end");
        let refused = b"\x01\x02\x80\x05\x00\x00\x00\x00\x00\x00\x00\x00";
        assert!(answers(request, refused));
    }
}
