//! A server that does to each connection exactly what a script says.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// One thing the server does. After the last step it closes the connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Reads a request up to its empty line.
    Request,
    Say(String),
    SayBytes(&'static [u8]),
    /// Says this again and again until the client is gone.
    Forever(&'static str),
    /// Says this a byte at a time, slowly, then starts again.
    Drip(&'static str),
    /// Waits until the client closes the connection.
    Hold,
    /// Waits until the test lets one connection go on.
    Await(Arc<Semaphore>),
    /// Closes with RST.
    Reset,
    /// Closes a TLS connection without saying so.
    Abandon,
}

pub(crate) fn say(text: impl Into<String>) -> Step {
    Step::Say(text.into())
}

/// Reads the request and answers with `text`.
pub(crate) fn answer(text: impl Into<String>) -> Vec<Step> {
    vec![Step::Request, say(text)]
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Between two bytes of a drip.
const DRIP_PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Seen {
    requests: Vec<String>,
    /// Connections that the server is through with.
    ended: usize,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    /// Plays `script` to every connection.
    pub(crate) async fn playing(script: Vec<Step>) -> Self {
        Self::start("127.0.0.1:0", None, move |_| script.clone()).await
    }

    /// Answers each request by what it was.
    pub(crate) async fn answering(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let (address, seen) = (
            listener.local_addr().expect("address"),
            Arc::new(Mutex::new(Seen::default())),
        );
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Ok(request) = read_request(&mut stream).await else {
                    continue;
                };
                let text = answer(&request);
                noted.lock().expect("lock").requests.push(request);
                let _ = stream.write_all(text.as_bytes()).await;
            }
        });
        Self { address, seen }
    }

    /// Plays `script` to every connection, after a TLS handshake.
    pub(crate) async fn playing_tls(script: Vec<Step>) -> Self {
        Self::start("127.0.0.1:0", Some(acceptor()), move |_| script.clone()).await
    }

    /// Plays to the n-th connection what `script` makes of n.
    pub(crate) async fn start(
        bind: &str,
        tls: Option<TlsAcceptor>,
        script: impl Fn(usize) -> Vec<Step> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(bind).await.expect("bind");
        let (address, seen) = (
            listener.local_addr().expect("address"),
            Arc::new(Mutex::new(Seen::default())),
        );
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut count = 0;
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, tls.clone(), script(count), Arc::clone(&noted)));
                count += 1;
            }
        });
        Self { address, seen }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().expect("lock").requests.clone()
    }

    /// Waits until the server is through with `count` connections.
    pub(crate) async fn ended(&self, count: usize) {
        while self.seen.lock().expect("lock").ended < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, script: Vec<Step>, seen: Arc<Mutex<Seen>>) {
    let control = socket2::SockRef::from(&stream)
        .try_clone()
        .expect("a second handle");
    // What the client does to the connection is its own affair; the script just ends earlier.
    let _ = match tls {
        None => play(stream, control, script, &seen).await,
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => play(stream, control, script, &seen).await,
            Err(error) => Err(error),
        },
    };
    seen.lock().expect("lock").ended += 1;
}

async fn play<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    control: socket2::Socket,
    script: Vec<Step>,
    seen: &Mutex<Seen>,
) -> io::Result<()> {
    for step in script {
        match step {
            Step::Request => {
                let request = read_request(&mut stream).await?;
                seen.lock().expect("lock").requests.push(request);
            }
            Step::Say(text) => stream.write_all(text.as_bytes()).await?,
            Step::SayBytes(bytes) => stream.write_all(bytes).await?,
            Step::Forever(text) => loop {
                stream.write_all(text.as_bytes()).await?;
            },
            Step::Drip(text) => loop {
                for byte in text.bytes() {
                    stream.write_all(&[byte]).await?;
                    stream.flush().await?;
                    tokio::time::sleep(DRIP_PAUSE).await;
                }
            },
            Step::Hold => {
                stream.flush().await?;
                tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
            }
            Step::Await(leave) => {
                stream.flush().await?;
                leave.acquire().await.expect("never closed").forget();
            }
            Step::Reset => {
                stream.flush().await?;
                return control.set_linger(Some(Duration::ZERO));
            }
            Step::Abandon => {
                stream.flush().await?;
                return Ok(());
            }
        }
    }
    stream.shutdown().await
}

async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// Whether this machine can do IPv6. Where tests are the gate it must.
pub(crate) fn has_ipv6() -> bool {
    match std::net::TcpListener::bind("[::1]:0") {
        Ok(_) => true,
        Err(error) if std::env::var_os("CI").is_some() => panic!("IPv6 is needed: {error}"),
        Err(error) => {
            eprintln!("skipped, no IPv6 here: {error}");
            false
        }
    }
}

/// A certificate that nobody should trust: self-signed, expired, for another name.
pub(crate) fn acceptor() -> TlsAcceptor {
    let mut params = rcgen::CertificateParams::new(["other.example".to_owned()]).expect("a name");
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a server configuration");
    TlsAcceptor::from(Arc::new(config))
}
