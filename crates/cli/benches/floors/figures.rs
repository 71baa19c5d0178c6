//! What the measurements of `floors` mean: percentiles of a histogram, where a node is at its end, and curves of it all.
//! Arithmetic and text only, so that tests can have it too.

use std::fmt::Write as _;

/// Half of a probe's period of 200 ms: later than this the node no longer probes as it was asked to.
pub(crate) const LATE_SECONDS: f64 = 0.1;
/// Of the whole machine: above it there is nothing left for the programs themselves.
pub(crate) const BUSY: f64 = 0.8;
/// Of the probes that pods with a period of one second should have got.
pub(crate) const KEPT: f64 = 0.98;
/// Of the fast probes that were asked for: a node under pressure stretches them instead of being late.
pub(crate) const MADE: f64 = 0.95;

/// One number of containers, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) containers: u32,
    /// Microseconds of the agent's CPU.
    pub(crate) agent_us_per_probe: f64,
    /// Microseconds of the machine's CPU, programs included.
    pub(crate) machine_us_per_probe: f64,
    /// Share of the machine that was busy.
    pub(crate) busy: f64,
    /// Seconds.
    pub(crate) late_p50: f64,
    pub(crate) late_p99: f64,
    /// The share of the fast probes that were made.
    pub(crate) made: f64,
    /// The share of the one-second probes beside them that were made.
    pub(crate) kept: f64,
}

impl Point {
    /// Whether the node did what it was asked to, with something to spare.
    pub(crate) fn holds(&self) -> bool {
        self.late_p99 <= LATE_SECONDS && self.busy <= BUSY && self.made >= MADE && self.kept >= KEPT
    }
}

/// The measurements of one handler, in order of the number of containers.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<Point>,
    /// A number of containers that did not all become ready in time.
    pub(crate) unready: Option<u32>,
}

impl Series {
    /// The most containers before the first number that did not hold.
    pub(crate) fn safe(&self) -> u32 {
        let held = self.points.iter().take_while(|point| point.holds());
        held.last().map_or(0, |point| point.containers)
    }
}

/// The value below which a share of the observations lies, from cumulative counts by upper bound.
pub(crate) fn percentile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let total = buckets.last().map_or(0.0, |(_, count)| *count);
    let wanted = total * share;
    let (mut below, mut counted) = (0.0, 0.0);
    for &(bound, count) in buckets {
        if count >= wanted && count > counted {
            let part = (wanted - counted) / (count - counted);
            let bound = if bound.is_finite() { bound } else { below };
            return below + (bound - below) * part.clamp(0.0, 1.0);
        }
        (below, counted) = (bound, count);
    }
    below
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 30.0;
const COLOURS: [&str; 6] = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569"];

/// Lines of the scale above zero.
const STEPS: u32 = 4;

/// The distance of two lines of a scale that has room for a value: 1, 2, 2.5 or 5 with so many zeroes.
fn round_step(most: f64) -> f64 {
    let least = most / f64::from(STEPS);
    let power = 10.0_f64.powf(least.log10().floor());
    let fits = |factor: &f64| factor * power >= least;
    [1.0, 2.0, 2.5, 5.0].into_iter().find(fits).unwrap_or(10.0) * power
}

/// Curves over the number of containers on a logarithmic scale, one per series, their values on a scale from zero.
pub(crate) fn svg(title: &str, unit: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0_f64, f64::max).max(f64::MIN_POSITIVE);
    let right = most(&mut points().map(|point| point.0));
    let step = round_step(most(&mut points().map(|point| point.1)));
    let high = step * f64::from(STEPS);
    let left = points().map(|point| point.0).fold(right, f64::min);
    let doublings = (right / left).log2().max(1.0);
    let x = |value: f64| LEFT + 20.0 + (value / left).log2() / doublings * (WIDTH - LEFT - 50.0);
    let y = |value: f64| HEIGHT - BOTTOM - value / high * (HEIGHT - BOTTOM - TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"16\" font-size=\"13\">{title}</text>\n"
    );
    let places = usize::from(step < 1.0);
    for line in 0..=STEPS {
        let value = step * f64::from(line);
        let (at, from, to) = (y(value), LEFT, WIDTH - 20.0);
        let _ = writeln!(
            out,
            "<line x1=\"{from}\" x2=\"{to}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e5e7eb\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.places$} {unit}</text>",
            LEFT - 4.0,
            at + 4.0
        );
    }
    for (place, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<String> = points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for point in points {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#6b7280\">{}</text>",
                x(point.0),
                y(point.1),
                x(point.0),
                HEIGHT - BOTTOM + 14.0,
                point.0
            );
        }
        let row = HEIGHT - 8.0;
        let column = LEFT + 110.0 * f64::from(u32::try_from(place).unwrap_or(0));
        let _ = writeln!(
            out,
            "<text x=\"{column}\" y=\"{row}\" fill=\"{colour}\">{name}</text>"
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The rows of a table and what follows from them, in Markdown.
pub(crate) fn markdown(series: &[Series], cores: u32) -> String {
    let mut out = String::from(
        "| probe | containers | agent's CPU per probe | machine's | machine busy | late p50 | late p99 | fast probes \
         made | one-second probes made |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for one in series {
        for point in &one.points {
            let broken = if point.holds() { "" } else { ", broken" };
            let _ = writeln!(
                out,
                "| {} | {}{broken} | {:.0} us | {:.0} us | {:.0} % | {:.1} ms | {:.1} ms | {:.0} % | {:.0} % |",
                one.name,
                point.containers,
                point.agent_us_per_probe,
                point.machine_us_per_probe,
                point.busy * 100.0,
                point.late_p50 * 1e3,
                point.late_p99 * 1e3,
                point.made * 100.0,
                point.kept * 100.0
            );
        }
        if let Some(containers) = one.unready {
            let _ = writeln!(
                out,
                "| {} | {containers}, not ready in time | | | | | | | |",
                one.name
            );
        }
    }
    out.push_str("\nContainers per core that were probed as fast as allowed, all at once and for good, before anything broke:\n\n");
    out.push_str("| probe | safe per core |\n|---|---|\n");
    for one in series {
        let per_core = one.safe() / cores.max(1);
        let _ = writeln!(out, "| {} | {per_core} |", one.name);
    }
    out
}
