//! CPU time of one probe beside a bare socket loop doing the same exchange, in one run.
//!
//! The servers run in a process of their own, so that only the client's time is counted. Rounds of both sides take
//! turns and the best round of each counts, since machines are noisy. `cargo bench -p pulselet-probe`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use pulselet_probe::{GrpcCheck, HttpRequest, NetworkOutcome, NetworkProbe, Prober, Purpose, Scheme, Target};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

const ROUNDS: usize = 5;
const PROBES_PER_ROUND: u32 = 2000;
const PROBES_FOR_TIME_WAIT: usize = 10_000;
const TIMEOUT: Duration = Duration::from_secs(30);

/// The argument that makes this program the server side.
const SERVE: &str = "--serve";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

fn main() {
    if std::env::args().any(|argument| argument == SERVE) {
        return server::run();
    }
    let (mut child, addresses) = start_server();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let prober = Prober::new();
    println!(
        "{:<6} {:>10} {:>10} {:>7}",
        "probe", "raw us", "probe us", "ratio"
    );
    for kind in Kind::ALL {
        let address = addresses[kind as usize];
        let (probe, raw) = (kind.probe(address), kind.raw(address));
        let (mut best_raw, mut best_probe) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            best_raw = best_raw.min(cpu_micros(|| (0..PROBES_PER_ROUND).for_each(|_| raw())));
            best_probe = best_probe.min(cpu_micros(|| {
                runtime.block_on(async {
                    for _ in 0..PROBES_PER_ROUND {
                        let report = prober.run(&probe, TIMEOUT).await;
                        assert_eq!(report.outcome, NetworkOutcome::Success, "{}", report.detail);
                    }
                });
            }));
        }
        println!(
            "{:<6} {best_raw:>10.1} {best_probe:>10.1} {:>7.2}",
            kind.name(),
            best_probe / best_raw
        );
    }
    for kind in [Kind::Http, Kind::Tcp] {
        let left = time_wait_after(kind, &runtime, &prober, addresses[kind as usize]);
        println!(
            "local ports in TIME_WAIT after {PROBES_FOR_TIME_WAIT} {} probes: {left}",
            kind.name()
        );
    }
    child.kill().expect("the server ends");
    child.wait().expect("the server ends");
}

/// CPU microseconds per probe of a whole round, user and system.
fn cpu_micros(round: impl FnOnce()) -> f64 {
    let now = || {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(
            spent.tv_sec.cast_unsigned(),
            u32::try_from(spent.tv_nsec).expect("below a second"),
        )
    };
    let before = now();
    round();
    now().saturating_sub(before).as_secs_f64() * 1e6 / f64::from(PROBES_PER_ROUND)
}

/// A tcp probe closes first, so its number shows that a port in `TIME_WAIT` would be counted.
fn time_wait_after(
    kind: Kind,
    runtime: &tokio::runtime::Runtime,
    prober: &Prober,
    server: SocketAddr,
) -> usize {
    let probe = kind.probe(server);
    runtime.block_on(async {
        for _ in 0..PROBES_FOR_TIME_WAIT {
            prober.run(&probe, TIMEOUT).await;
        }
        // The last connections are still being seen off.
        while count_local_ends(server, |state| state != "06") > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    count_local_ends(server, |state| state == "06")
}

fn count_local_ends(server: SocketAddr, wanted: impl Fn(&str) -> bool) -> usize {
    let port = format!(":{:04X}", server.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    let rows = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[2].ends_with(&port) && wanted(row[3]))
        .count()
}

fn start_server() -> (Child, Vec<SocketAddr>) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .arg(SERVE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let addresses = lines
        .take(Kind::ALL.len())
        .map(|line| line.expect("a line").parse().expect("an address"));
    let addresses = addresses.collect();
    (child, addresses)
}

#[derive(Clone, Copy)]
enum Kind {
    Http,
    Https,
    Tcp,
    Grpc,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Http, Self::Https, Self::Tcp, Self::Grpc];

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
        }
    }

    fn probe(self, address: SocketAddr) -> NetworkProbe {
        let target = Target::from(address);
        let get = |scheme| {
            HttpRequest::new(
                Purpose::Probe,
                scheme,
                Target::from(address),
                "/healthz",
                Vec::new(),
            )
        };
        match self {
            Self::Http => NetworkProbe::Http(get(Scheme::Http)),
            Self::Https => NetworkProbe::Http(get(Scheme::Https)),
            Self::Tcp => NetworkProbe::Tcp(target),
            Self::Grpc => NetworkProbe::Grpc(GrpcCheck::new(target, "")),
        }
    }

    /// The same exchange on a blocking socket, with nothing around it.
    fn raw(self, address: SocketAddr) -> Box<dyn Fn()> {
        let request = format!(
            "GET /healthz HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\n\
             Connection: close\r\n\r\n"
        );
        match self {
            Self::Http => Box::new(move || {
                read_to_end(TcpStream::connect(address).expect("connect"), request.as_bytes());
            }),
            Self::Https => {
                let config = raw::tls_config();
                Box::new(move || {
                    let session = ClientConnection::new(Arc::clone(&config), ServerName::from(address.ip()));
                    let tcp = TcpStream::connect(address).expect("connect");
                    tcp.set_nodelay(true).expect("nodelay");
                    read_to_end(
                        StreamOwned::new(session.expect("a session"), tcp),
                        request.as_bytes(),
                    );
                })
            }
            Self::Tcp => Box::new(move || drop(TcpStream::connect(address).expect("connect"))),
            Self::Grpc => {
                let call = raw::health_call(address);
                Box::new(move || raw::check_health(address, &call))
            }
        }
    }
}

fn read_to_end(mut stream: impl Read + Write, request: &[u8]) {
    stream.write_all(request).expect("the request is sent");
    let mut buffer = [0; 4096];
    // A TLS server may close without saying so; the answer is there all the same.
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

mod raw {
    //! The parts of the bare loops that need more than a line.

    use super::{Arc, ClientConfig, Read, ServerName, SocketAddr, TcpStream, Write};
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    const HEADERS_FRAME: u8 = 1;
    const END_STREAM: u8 = 1;
    const FRAME_HEAD_BYTES: usize = 9;

    /// Preface, empty settings, the request's headers without compression, and its empty message.
    pub(super) fn health_call(address: SocketAddr) -> Vec<u8> {
        let authority = address.to_string();
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", authority.as_str()),
            ("content-type", "application/grpc"),
            ("user-agent", "kube-probe/1.36"),
            ("te", "trailers"),
        ];
        let mut block = Vec::new();
        for (name, value) in headers {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("a short text"));
                block.extend_from_slice(text.as_bytes());
            }
        }
        let mut call = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        call.extend_from_slice(&[0, 0, u8::try_from(block.len()).expect("a short block")]);
        call.extend_from_slice(&[HEADERS_FRAME, 4, 0, 0, 0, 1]);
        call.extend_from_slice(&block);
        call.extend_from_slice(b"\0\0\x05\0\x01\0\0\0\x01\0\0\0\0\0");
        call
    }

    /// Reads frames until the stream's last.
    pub(super) fn check_health(address: SocketAddr, call: &[u8]) {
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        stream.write_all(call).expect("the call is sent");
        let mut buffer = [0; 4096];
        let (mut have, mut at) = (0, 0);
        loop {
            have += match stream.read(&mut buffer[have..]).expect("an answer") {
                0 => panic!("the server closed early"),
                read => read,
            };
            while have - at >= FRAME_HEAD_BYTES {
                let length = usize::from(buffer[at + 1]) << 8 | usize::from(buffer[at + 2]);
                if have - at < FRAME_HEAD_BYTES + length {
                    break;
                }
                if buffer[at + 3] == HEADERS_FRAME && buffer[at + 4] & END_STREAM != 0 {
                    return;
                }
                at += FRAME_HEAD_BYTES + length;
            }
        }
    }

    pub(super) fn tls_config() -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
            .with_no_client_auth();
        Arc::new(config)
    }

    #[derive(Debug)]
    struct Anyone;

    impl ServerCertVerifier for Anyone {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ECDSA_NISTP256_SHA256]
        }
    }
}

mod server {
    //! One server per kind of probe; their addresses go to stdout, a line each, in the order of the kinds.

    use super::{
        Arc, PrivateKeyDer, PrivatePkcs8KeyDer, RESPONSE, Read, ServerConfig, ServerConnection, StreamOwned,
        TcpListener, TcpStream, TokioExecutor, TokioIo, TowerToHyperService, Write,
    };

    /// Enough that a client never waits for an accept.
    const THREADS: usize = 2;

    pub(super) fn run() {
        let http = listen();
        threads(&http, |mut stream| answer(&mut stream));
        let https = listen();
        let config = tls_config();
        threads(&https, move |tcp| {
            let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
            let mut stream = StreamOwned::new(session, tcp);
            answer(&mut stream);
            stream.conn.send_close_notify();
            let _ = stream.flush();
        });
        let tcp = listen();
        // The client closes first, as with a server that waits to be spoken to.
        threads(&tcp, |mut stream| drop(stream.read(&mut [0; 1])));
        let grpc = listen();
        for listener in [&http, &https, &tcp, &grpc] {
            println!("{}", listener.local_addr().expect("an address"));
        }
        // The client's end of our input closes with it, however it ends.
        std::thread::spawn(|| {
            let _ = std::io::stdin().read(&mut [0; 1]);
            std::process::exit(0);
        });
        serve_health(grpc);
    }

    fn listen() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").expect("bind")
    }

    fn threads(listener: &TcpListener, handle: impl Fn(TcpStream) + Send + Clone + 'static) {
        for _ in 0..THREADS {
            let (listener, handle) = (listener.try_clone().expect("a second handle"), handle.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    handle(stream);
                }
            });
        }
    }

    /// Clients may vanish; the next one is served all the same.
    fn answer(stream: &mut (impl Read + Write)) {
        if matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
            let _ = stream.write_all(RESPONSE);
        }
    }

    fn tls_config() -> Arc<ServerConfig> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a server configuration");
        Arc::new(config)
    }

    fn serve_health(listener: TcpListener) {
        listener.set_nonblocking(true).expect("non-blocking");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (_reporter, service) = tonic_health::server::health_reporter();
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
    }
}
