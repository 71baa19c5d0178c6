//! `pulselet dashboard`: a web page of the local node or of an API's pods, on loopback, for whoever has its address.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use pulselet_cluster::{ApiClient, Kubeconfig, PodObserver};
use pulselet_dashboard::{Dashboard, DashboardSource};
use tokio::net::TcpListener;

use crate::agent;
use crate::cli::DashboardArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// What opens an address in the browser of whoever sits at this machine.
const OPENER: &str = "xdg-open";

pub(crate) fn run(args: &DashboardArgs) -> Result<Exit, Failure> {
    let executor = agent::small_executor()?;
    let ended = executor.block_on(serve(args));
    // Who follows a log waits for it in a thread.
    executor.shutdown_background();
    ended
}

async fn serve(args: &DashboardArgs) -> Result<Exit, Failure> {
    let source = if let Some(file) = &args.kubeconfig {
        DashboardSource::Api(observer(file, args.namespace.as_deref()).await?)
    } else {
        let client = args.data.client()?;
        // The page would wait for an agent; a slip in --data-dir is better told here.
        client.pods().await?;
        DashboardSource::Agent(client)
    };
    let mut interrupts = Interrupts::listen()?;
    let address = (Ipv4Addr::LOCALHOST, args.port);
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::environment(format_args!("cannot listen on 127.0.0.1:{}: {error}", args.port))
            .with_hint("choose another --port, or none for one that is free")
    })?;
    let dashboard = Dashboard::start(listener, source).map_err(Failure::environment)?;
    let url = dashboard.url();
    let mut out = output::stdout();
    let written = writeln!(out, "{url}");
    output::written(written.and_then(|()| out.flush()))?;
    drop(out);
    output::note("the address opens one browser, once; Ctrl-C ends the dashboard, and nothing else");
    if args.open {
        open(&url);
    }
    interrupts.next().await;
    Ok(Exit::Done)
}

/// Whoever looks at the pods of an API; they can be listed.
async fn observer(kubeconfig: &Path, namespace: Option<&str>) -> Result<PodObserver, Failure> {
    let kubeconfig = Kubeconfig::load(kubeconfig).map_err(Failure::usage)?;
    let namespace = namespace
        .or(kubeconfig.namespace())
        .unwrap_or("default")
        .to_owned();
    let observer = PodObserver::new(ApiClient::new(kubeconfig), namespace);
    observer.check().await.map_err(|error| {
        Failure::environment(format_args!(
            "cannot list the pods of namespace {}: {error}",
            observer.namespace()
        ))
        .with_hint(
            "see whether `kubectl --kubeconfig FILE get pods` works, and choose a namespace with --namespace",
        )
    })?;
    Ok(observer)
}

fn open(url: &str) {
    let opener = Command::new(OPENER)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opener {
        output::note(&format!(
            "cannot open a browser with {OPENER} ({error}): open the address yourself"
        ));
    }
}
