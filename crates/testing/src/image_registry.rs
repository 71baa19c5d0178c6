//! A registry that has one image, under every name, and writes down who asks: plain http on this machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::image_archive::{ImageDocuments, MANIFEST_TYPE};

/// Lines of a request's head that are read: far more than one has.
const MAX_LINES: usize = 200;

/// Who may have the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    Everybody,
    /// Who sends this `Authorization` header.
    Only(String),
    /// Nobody, whatever they send.
    Nobody,
}

/// Runs until it is dropped.
#[derive(Debug)]
pub struct ImageRegistry {
    pub address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    ended: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl ImageRegistry {
    pub fn start(image: ImageDocuments, access: Access) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (heads, ended) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (seen, done) = (Arc::clone(&heads), Arc::clone(&ended));
        let listening = std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if done.load(Ordering::Acquire) {
                    return;
                }
                // A client that leaves in between has its reasons.
                let _ = serve(client, &image, &access, &seen);
            }
        });
        Self {
            address,
            heads,
            ended,
            listening: Some(listening),
        }
    }

    /// The heads of all requests so far, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for ImageRegistry {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The thread waits for a client.
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// Answers one request and closes the connection.
fn serve(
    client: TcpStream,
    image: &ImageDocuments,
    access: &Access,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut head = String::new();
    for _ in 0..MAX_LINES {
        if reader.read_line(&mut head)? <= 2 {
            break;
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let allowed = match access {
        Access::Everybody => true,
        Access::Only(value) => head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .any(|(name, sent)| name.eq_ignore_ascii_case("authorization") && sent.trim() == value),
        Access::Nobody => false,
    };
    seen.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head.to_ascii_lowercase());
    let client = reader.get_mut();
    if !allowed {
        return answer(
            client,
            "401 Unauthorized",
            "www-authenticate: Basic realm=\"x\"",
            b"",
        );
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    if path.contains("/manifests/") {
        let kind = format!("content-type: {MANIFEST_TYPE}");
        return answer(client, "200 OK", &kind, &image.manifest);
    }
    match image.blobs.get(last) {
        Some(blob) => answer(client, "200 OK", "content-type: application/octet-stream", blob),
        None => answer(client, "404 Not Found", "content-type: text/plain", b""),
    }
}

fn answer(client: &mut TcpStream, status: &str, header: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{header}\r\n\r\n"
    )?;
    client.write_all(body)
}
