//! Throws random pods into random worlds and holds the engine to its rules.
//!
//! Every pod and every world is made from one number, so a failure is replayed by that number.

use std::num::NonZero;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::Parser;
use pulselet_sim::case::Case;
use pulselet_sim::trial;

/// Simulates random pods under faults and checks the engine after every step.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:\n  pulselet-sim --seeds 100000\n  pulselet-sim --seed 4711")]
struct Args {
    /// How many seeds to try
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Replay one seed and print its case and event lines
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    // A panic of the engine is caught and reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let args = Args::parse();
    match args.seed {
        Some(seed) => replay(seed),
        None => sweep(args.from, args.seeds),
    }
}

fn replay(seed: u64) -> ExitCode {
    if let Some(report) = trial::report(seed) {
        println!("{report}");
        return ExitCode::FAILURE;
    }
    println!("{}seed {seed} holds", Case::random(seed));
    ExitCode::SUCCESS
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long the sweep took is told, not decided upon"
)]
fn sweep(from: u64, count: u64) -> ExitCode {
    let threads = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let begun = Instant::now();
    match trial::try_seeds(from, count, threads) {
        Err(seed) => {
            println!(
                "{}",
                trial::report(seed).unwrap_or_else(|| format!("seed {seed} failed once"))
            );
            ExitCode::FAILURE
        }
        Ok(covered) => {
            let seconds = begun.elapsed().as_secs_f64().max(1e-9);
            let hours = covered.simulated.as_secs_f64() / 3600.0;
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let per_second = |count: u64| count as f64 / seconds;
            println!(
                "{} seeds, {} steps, {hours:.0} simulated hours in {seconds:.1} s on {threads} threads: \
                 {:.0} seeds/s, {:.0} steps/s, {:.0} simulated hours/s",
                covered.seeds,
                covered.steps,
                per_second(covered.seeds),
                per_second(covered.steps),
                hours / seconds
            );
            ExitCode::SUCCESS
        }
    }
}
