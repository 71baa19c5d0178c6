//! What probing costs the engine: one tick of a worker, a node of ten thousand containers for one simulated minute, and
//! the bytes a worker takes.

mod node;

use std::time::Instant;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pulselet_engine::Span;
use pulselet_engine::probe_runner::ProbeRunner;

use node::{Node, SETTLED};

const CONTAINERS: u64 = 10_000;
const MINUTE: Span = Span::from_secs(60);
/// Bytes of state that a worker may take.
const MAX_WORKER_BYTES: usize = 256;

/// One tick of one worker among others: it falls due, and its answer is good.
#[expect(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark measures real time, and not to the last digit"
)]
fn one_tick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tick");
    group.throughput(Throughput::Elements(1));
    for containers in [1, 100, CONTAINERS] {
        let mut node = Node::running(containers);
        group.bench_function(format!("of {containers} containers"), |bencher| {
            bencher.iter_custom(|iterations| {
                let begun = Instant::now();
                // The last moment may hold more ticks than were asked for.
                let taken = node.take_ticks(iterations).max(1);
                let per_tick = begun.elapsed().as_secs_f64() / taken as f64;
                std::time::Duration::from_secs_f64(per_tick * iterations as f64)
            });
        });
    }
    group.finish();
}

fn one_minute(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("node");
    group.sample_size(10);
    group.bench_function("one minute of 10000 containers with 3 probes", |bencher| {
        bencher.iter_batched_ref(
            || Node::running(CONTAINERS),
            |node| node.advance(SETTLED + MINUTE),
            BatchSize::LargeInput,
        );
    });
    group.finish();
    let bytes = size_of::<ProbeRunner>();
    println!("bytes of state per worker: {bytes}");
    assert!(bytes < MAX_WORKER_BYTES, "a worker takes {bytes} bytes");
}

criterion_group!(benches, one_tick, one_minute);
criterion_main!(benches);
