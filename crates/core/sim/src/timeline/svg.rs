//! The timeline as a drawing.
//!
//! Every lane has, from top to bottom, labels for what was done to the container, a bar of its states, and a row for
//! each kind of probe. Shapes tell outcomes apart as well as colours do. The drawing needs nothing but itself.

use std::fmt::{self, Write as _};

use pulselet_engine::plan::ProbeKind;
use pulselet_engine::time::{Span, Time};

use super::{Lane, LaneState, Mark, MarkSort, ProbeResult, ProbeRun, Segment, Timeline};
use pulselet_plan::duration::format_duration;

pub(super) const WIDTH: f64 = 1000.0;
/// Where time begins; names stand to the left of it.
pub(super) const LEFT: f64 = 132.0;
pub(super) const RIGHT: f64 = 984.0;
const TITLE_HEIGHT: f64 = 34.0;
const POD_ROW_HEIGHT: f64 = 38.0;
pub(super) const LABEL_ROWS: usize = 4;
pub(super) const LABEL_HEIGHT: f64 = 13.0;
/// From a mark up to its first label, and from its line sideways to the text.
pub(super) const LABEL_LIFT: f64 = 7.0;
pub(super) const LABEL_GAP: f64 = 4.0;
const BAR_HEIGHT: f64 = 20.0;
const PROBE_ROW_HEIGHT: f64 = 15.0;
const LANE_GAP: f64 = 12.0;
const AXIS_HEIGHT: f64 = 30.0;
const LEGEND_ROW_HEIGHT: f64 = 18.0;
/// Ticks of one run that stand closer than this are drawn as a band.
const BAND_BELOW: f64 = 4.0;
/// The width of an average character of a label.
pub(super) const CHARACTER: f64 = 6.0;
/// How many numbers the axis shows at most.
pub(super) const MAX_AXIS_STEPS: u64 = 9;
/// The steps an axis may have, in milliseconds, so that its numbers are round.
pub(super) const AXIS_STEPS: [u64; 25] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000,
    300_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000,
];

pub(super) const STYLE: &str = "\
text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:#24292f}\
.title{font-size:15px;font-weight:600}.name{font-size:12px;font-weight:600}.dim{fill:#6e7781;font-size:10px}\
.paper{fill:#fff}.rule{stroke:#d0d7de;stroke-width:1}.grid{stroke:#eaeef2;stroke-width:1}\
.row{stroke:#eaeef2;stroke-width:1}\
.starting{fill:#f5d28a}.started{fill:#a8c7ec}.ready{fill:#8fd0a0}.terminating{fill:#f0a09a}.back-off{fill:#d8dee4}\
.in{font-size:10px;fill:#24292f}\
.ok{stroke:#1a7f37;stroke-width:1.6;fill:none}.okband{fill:#1a7f37;opacity:.55}\
.failed{stroke:#cf222e;stroke-width:2;fill:none}.failedband{fill:#cf222e;opacity:.75}\
.look{stroke:#bc4c00;stroke-width:1.2;fill:none}.lookband{fill:#bc4c00;opacity:.35}\
.warning{stroke:#9a6700;stroke-width:1.2;fill:#f2cc60}.warningband{fill:#d4a72c}\
.error{stroke:#8250df;stroke-width:1.4;fill:none}.errorband{fill:#8250df;opacity:.4}\
.kill{stroke:#cf222e;stroke-width:1.5;fill:#cf222e}.signal{stroke:#bc4c00;stroke-width:1.2;fill:#bc4c00}\
.forced{stroke:#82071e;stroke-width:1.5;fill:#82071e}.exit{stroke:#24292f;stroke-width:1.2;fill:#fff}\
.restart{stroke:#0969da;stroke-width:1.4;fill:none}.hook{stroke:#8250df;stroke-width:1.2;fill:#fff}\
.agent{stroke:#8250df;stroke-width:1.2;stroke-dasharray:3 3;fill:none}.note{stroke:#6e7781;stroke-width:1;fill:#6e7781}\
.lead{stroke-width:1;opacity:.55;fill:none}.label{font-size:10px;paint-order:stroke}.label.kill,.label.forced{font-weight:600}\
text.kill,text.forced,text.signal,text.exit,text.restart,text.hook,text.agent,text.note{stroke:#fff;stroke-width:3;stroke-dasharray:none;fill:#24292f}\
text.kill,text.forced{fill:#a40e26}";

pub(super) const DARK_STYLE: &str = "\
text,.in,text.signal,text.exit,text.restart,text.hook,text.agent,text.note{fill:#e6edf3}.dim{fill:#8b949e}\
.paper{fill:#0d1117}.rule{stroke:#30363d}.grid,.row{stroke:#21262d}\
.starting{fill:#7d5b12}.started{fill:#1f4b7d}.ready{fill:#1d6a35}.terminating{fill:#8c2f2a}.back-off{fill:#30363d}\
.ok{stroke:#3fb950}.okband{fill:#3fb950}.failed{stroke:#ff7b72}.failedband{fill:#ff7b72}.look{stroke:#f0883e}\
.exit,.hook{fill:#0d1117}.exit{stroke:#e6edf3}text.label{stroke:#0d1117!important}text.kill,text.forced{fill:#ff7b72}";

/// How much is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// What can be told apart at this width.
    Still,
    /// Every probe for itself, because the reader can zoom.
    Zoomable,
}

/// Draws a timeline as one SVG document.
pub fn svg(timeline: &Timeline) -> String {
    let drawing = draw(timeline, Detail::Still);
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{drawing}\n")
}

/// The `svg` element.
pub(super) fn draw(timeline: &Timeline, detail: Detail) -> String {
    let mut canvas = Canvas {
        body: String::new(),
        end: timeline.end.max(Time::from_micros(1_000_000)),
        detail,
    };
    let mut y = TITLE_HEIGHT;
    let grid_top = y;
    let mut lanes = String::new();
    std::mem::swap(&mut canvas.body, &mut lanes);
    canvas.pod_row(timeline, y);
    y += POD_ROW_HEIGHT;
    for (index, lane) in timeline.lanes.iter().enumerate() {
        y = canvas.lane(lane, index, y) + LANE_GAP;
    }
    std::mem::swap(&mut canvas.body, &mut lanes);
    let axis = y;
    canvas.axis(grid_top, axis);
    canvas.agent_lines(&timeline.marks, grid_top, axis);
    canvas.body.push_str(&lanes);
    let height = canvas.legend(axis + AXIS_HEIGHT);
    let end = timeline.end.since(Time::ZERO);
    let mut drawing = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"Timeline of {pod}\">\n\
         <style>{STYLE}@media (prefers-color-scheme:dark){{{DARK_STYLE}}}</style>\n{PATTERNS}\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"14\" y=\"22\">{pod}</text>\n\
         <text class=\"dim\" x=\"{RIGHT}\" y=\"22\" text-anchor=\"end\">{} simulated</text>\n",
        format_duration(end),
        pod = Escaped(&timeline.pod.to_string()),
    );
    drawing.push_str(&canvas.body);
    drawing.push_str("</svg>");
    drawing
}

const PATTERNS: &str = "<defs>\
<pattern id=\"stripes\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#82071e\" stroke-width=\"1.5\" opacity=\".35\"/></pattern>\
<pattern id=\"dots\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<circle cx=\"3\" cy=\"3\" r=\"1\" fill=\"#6e7781\" opacity=\".6\"/></pattern>\
<pattern id=\"rising\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(-45)\">\
<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"8\" stroke=\"#9a6700\" stroke-width=\"1\" opacity=\".3\"/></pattern></defs>";

struct Canvas {
    body: String,
    end: Time,
    detail: Detail,
}

/// Writing to a String does not fail.
macro_rules! put {
    ($canvas:expr, $($arguments:tt)*) => { let _ = writeln!($canvas.body, $($arguments)*); };
}

impl Canvas {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a drawing is not exact to the microsecond"
    )]
    fn x(&self, at: Time) -> f64 {
        LEFT + (RIGHT - LEFT) * (at.as_micros() as f64 / self.end.as_micros() as f64)
    }

    /// The pod's phases and conditions.
    fn pod_row(&mut self, timeline: &Timeline, top: f64) {
        let y = top + POD_ROW_HEIGHT - 10.0;
        put!(
            self,
            "<text class=\"name\" x=\"14\" y=\"{:.1}\">pod</text>",
            y + 4.0
        );
        put!(
            self,
            "<line class=\"rule\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>"
        );
        self.marks(&timeline.marks, "pod", y, 2);
    }

    fn lane(&mut self, lane: &Lane, index: usize, top: f64) -> f64 {
        let bar = top + LABEL_HEIGHT * 4.0 + 8.0;
        put!(self, "<g data-lane=\"{index}\">");
        let name = Escaped(&lane.container);
        put!(
            self,
            "<text class=\"name\" x=\"14\" y=\"{:.1}\">{name}</text>",
            bar + 14.0
        );
        for segment in &lane.segments {
            self.segment(segment, bar);
        }
        let mut y = bar + BAR_HEIGHT + 2.0;
        for kind in ProbeKind::ALL {
            let mut runs = lane.probes.iter().filter(|run| run.kind == kind).peekable();
            if runs.peek().is_some() {
                self.probe_row(kind, runs, y);
                y += PROBE_ROW_HEIGHT;
            }
        }
        self.marks(&lane.marks, &lane.container, bar - 4.0, LABEL_ROWS);
        put!(self, "</g>");
        y
    }

    fn segment(&mut self, segment: &Segment, y: f64) {
        let until = segment.until.unwrap_or(self.end);
        let (left, right) = (self.x(segment.from), self.x(until));
        let width = (right - left).max(0.8);
        let state = segment.state.as_str();
        let pattern = match segment.state {
            LaneState::Terminating => Some("stripes"),
            LaneState::BackingOff => Some("dots"),
            LaneState::Starting => Some("rising"),
            LaneState::Started | LaneState::Ready => None,
        };
        let tip = format!(
            "{state}, life {}: {} to {} ({})",
            segment.life,
            seconds(segment.from),
            seconds(until),
            format_duration(until.since(segment.from))
        );
        let span = format!(
            "data-a=\"{}\" data-b=\"{}\"",
            segment.from.as_micros(),
            until.as_micros()
        );
        put!(self, "<g class=\"seg\"><title>{tip}</title>");
        for class in [
            Some(format!("class=\"{state}\"")),
            pattern.map(|id| format!("fill=\"url(#{id})\"")),
        ]
        .into_iter()
        .flatten()
        {
            put!(
                self,
                "<rect {class} {span} x=\"{left:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{BAR_HEIGHT}\"/>"
            );
        }
        #[expect(clippy::cast_precision_loss, reason = "a short word")]
        let room = width > state.len() as f64 * CHARACTER + 8.0;
        if room || self.detail == Detail::Zoomable {
            let hidden = if room { "" } else { " display=\"none\"" };
            put!(
                self,
                "<text class=\"in\" {span}{hidden} x=\"{:.2}\" y=\"{:.1}\">{state}</text>",
                left + 4.0,
                y + 14.0
            );
        }
        put!(self, "</g>");
    }

    fn probe_row<'a>(&mut self, kind: ProbeKind, runs: impl Iterator<Item = &'a ProbeRun>, top: f64) {
        let y = top + PROBE_ROW_HEIGHT / 2.0;
        put!(
            self,
            "<text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 3.5,
            kind.as_str()
        );
        put!(
            self,
            "<line class=\"row\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>"
        );
        for run in runs {
            self.run(run, y);
        }
    }

    fn run(&mut self, run: &ProbeRun, y: f64) {
        #[expect(clippy::cast_precision_loss, reason = "only the density matters")]
        let spacing = (self.x(run.until) - self.x(run.from)) / (run.count.saturating_sub(1).max(1)) as f64;
        let exact = run.times.len() as u64 == run.count;
        let still = self.detail == Detail::Still;
        if run.count > 1 && (!exact || still && spacing < BAND_BELOW) {
            self.band(run, y);
            return;
        }
        for (index, at) in run.times.iter().enumerate() {
            let which = if run.count > 1 {
                format!(" ({} of {})", index + 1, run.count)
            } else {
                String::new()
            };
            let tip = format!(
                "{} {} {}{which}: {}",
                seconds(*at),
                run.kind.as_str(),
                run.result.as_str(),
                Escaped(&run.detail)
            );
            let shape = probe_shape(run.result);
            self.point(*at, y, probe_class(run.result), shape, &tip);
        }
    }

    fn band(&mut self, run: &ProbeRun, y: f64) {
        let (left, right) = (self.x(run.from), self.x(run.until));
        let width = (right - left).max(1.5);
        let height = match run.result {
            ProbeResult::Failure => 9.0,
            ProbeResult::Success | ProbeResult::Warning | ProbeResult::Look | ProbeResult::Error => 5.0,
        };
        let tip = format!(
            "{} {} x{}: {} to {}: {}",
            run.kind.as_str(),
            run.result.as_str(),
            run.count,
            seconds(run.from),
            seconds(run.until),
            Escaped(&run.detail)
        );
        put!(
            self,
            "<g><title>{tip}</title><rect class=\"{}band\" data-a=\"{}\" data-b=\"{}\" x=\"{left:.2}\" y=\"{:.1}\" \
             width=\"{width:.2}\" height=\"{height}\"/>",
            probe_class(run.result),
            run.from.as_micros(),
            run.until.as_micros(),
            y - height / 2.0
        );
        let label = format!("{} x{}", run.result.as_str(), run.count);
        #[expect(clippy::cast_precision_loss, reason = "a short word")]
        let room = width > label.len() as f64 * CHARACTER + 24.0;
        if room && self.detail == Detail::Still {
            let middle = f64::midpoint(left, right);
            #[expect(clippy::cast_precision_loss, reason = "a short word")]
            let half = label.len() as f64 * CHARACTER / 2.0 + 4.0;
            put!(
                self,
                "<rect class=\"paper\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"11\"/>\
                 <text class=\"dim\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                middle - half,
                y - 5.5,
                half * 2.0,
                y + 3.5
            );
        }
        put!(self, "</g>");
    }

    fn point(&mut self, at: Time, y: f64, class: &str, shape: &str, tip: &str) {
        put!(
            self,
            "<g class=\"{class}\" data-t=\"{}\" data-y=\"{y:.1}\" transform=\"translate({:.2} {y:.1})\">\
             <title>{tip}</title>{shape}</g>",
            at.as_micros(),
            self.x(at)
        );
    }

    /// Marks with their labels, which are left out where there is no room.
    fn marks(&mut self, marks: &[Mark], subject: &str, y: f64, rows: usize) {
        let mut ends = vec![f64::MIN; rows];
        let mut last: Option<(MarkSort, f64)> = None;
        for mark in marks {
            let x = self.x(mark.at);
            let class = mark_class(mark.sort);
            let repeated = last.is_some_and(|(sort, before)| sort == mark.sort && x - before < 2.0);
            if repeated && self.detail == Detail::Still {
                continue;
            }
            last = Some((mark.sort, x));
            let label = Escaped(&mark.label);
            let tip = format!("{} {}: {label}", seconds(mark.at), Escaped(subject));
            self.point(mark.at, y, class, mark_shape(mark.sort), &tip);
            self.label(mark, x, y, &mut ends);
        }
    }

    fn label(&mut self, mark: &Mark, x: f64, y: f64, ends: &mut [f64]) {
        #[expect(clippy::cast_precision_loss, reason = "a short text")]
        let width = mark.label.chars().count() as f64 * CHARACTER;
        let (class, label) = (mark_class(mark.sort), Escaped(&mark.label));
        let leftwards = x + width + LABEL_GAP > RIGHT;
        let (left, text_x, anchor) = if leftwards {
            (x - width - LABEL_GAP, x - LABEL_GAP, "end")
        } else {
            (x, x + LABEL_GAP, "start")
        };
        let row = ends.iter().position(|end| *end < left);
        if row.is_none() && self.detail == Detail::Still {
            return;
        }
        if let Some(row) = row {
            ends[row] = if leftwards { x } else { x + width + 2.0 * LABEL_GAP };
        }
        #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
        let text_y = y - LABEL_LIFT - row.unwrap_or(0) as f64 * LABEL_HEIGHT;
        let display = if row.is_none() { " display=\"none\"" } else { "" };
        put!(
            self,
            "<g class=\"tag\" data-t=\"{}\" data-y=\"{y:.1}\" data-rows=\"{}\" data-w=\"{width:.0}\"{display}>\
             <line class=\"{class} lead\" x1=\"{x:.2}\" y1=\"{:.1}\" x2=\"{x:.2}\" y2=\"{:.1}\"/>\
             <text class=\"label {class}\" x=\"{text_x:.2}\" y=\"{text_y:.1}\" text-anchor=\"{anchor}\">{label}</text></g>",
            mark.at.as_micros(),
            ends.len(),
            y - 3.0,
            text_y - 7.0
        );
    }

    fn agent_lines(&mut self, marks: &[Mark], top: f64, bottom: f64) {
        for mark in marks.iter().filter(|mark| mark.sort == MarkSort::Agent) {
            let x = self.x(mark.at);
            put!(
                self,
                "<line class=\"agent\" data-v=\"{}\" x1=\"{x:.2}\" y1=\"{top:.1}\" x2=\"{x:.2}\" y2=\"{bottom:.1}\"/>",
                mark.at.as_micros()
            );
        }
    }

    fn axis(&mut self, top: f64, y: f64) {
        put!(self, "<g id=\"axis\" data-top=\"{top:.1}\" data-y=\"{y:.1}\">");
        put!(
            self,
            "<line class=\"rule\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>"
        );
        let end = self.end.as_micros() / 1_000;
        let step = axis_step(end);
        for millis in (0..=end).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let at = Time::ZERO + Span::from_millis(millis);
            let x = self.x(at);
            put!(
                self,
                "<line class=\"grid\" x1=\"{x:.2}\" y1=\"{top:.1}\" x2=\"{x:.2}\" y2=\"{y:.1}\"/>"
            );
            put!(
                self,
                "<text class=\"dim\" x=\"{x:.2}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                y + 14.0,
                axis_label(millis)
            );
        }
        put!(self, "</g>");
    }

    /// Explains every colour and shape; returns where it ends.
    fn legend(&mut self, top: f64) -> f64 {
        let mut y = top + 8.0;
        let mut x = LEFT;
        put!(
            self,
            "<text class=\"dim\" x=\"14\" y=\"{:.1}\">states</text>",
            y + 9.0
        );
        for state in LaneState::ALL {
            let segment = Segment {
                state,
                from: Time::ZERO,
                until: Some(Time::ZERO),
                life: 0,
            };
            self.legend_swatch(&segment, x, y);
            x += 110.0;
        }
        y += LEGEND_ROW_HEIGHT;
        x = LEFT;
        put!(
            self,
            "<text class=\"dim\" x=\"14\" y=\"{:.1}\">probes</text>",
            y + 9.0
        );
        for result in ProbeResult::ALL {
            self.legend_shape(x, y, probe_class(result), probe_shape(result), result.as_str());
            x += 110.0;
        }
        y += LEGEND_ROW_HEIGHT;
        x = LEFT;
        put!(
            self,
            "<text class=\"dim\" x=\"14\" y=\"{:.1}\">marks</text>",
            y + 9.0
        );
        for (sort, word) in [
            (MarkSort::Kill, "kill decided"),
            (MarkSort::Signal, "stop signal"),
            (MarkSort::ForcedKill, "SIGKILL after grace"),
            (MarkSort::Exit, "exit"),
            (MarkSort::Restart, "restart"),
            (MarkSort::Hook, "hook"),
            (MarkSort::Agent, "agent restarted"),
        ] {
            self.legend_shape(x, y, mark_class(sort), mark_shape(sort), word);
            #[expect(clippy::cast_precision_loss, reason = "a short word")]
            let width = word.len() as f64 * CHARACTER;
            x += width + 36.0;
        }
        y + LEGEND_ROW_HEIGHT + 4.0
    }

    fn legend_swatch(&mut self, segment: &Segment, x: f64, y: f64) {
        let state = segment.state.as_str();
        put!(
            self,
            "<rect class=\"{state}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"18\" height=\"11\"/>"
        );
        let pattern = match segment.state {
            LaneState::Terminating => "stripes",
            LaneState::BackingOff => "dots",
            LaneState::Starting => "rising",
            LaneState::Started | LaneState::Ready => "",
        };
        if !pattern.is_empty() {
            put!(
                self,
                "<rect fill=\"url(#{pattern})\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"18\" height=\"11\"/>"
            );
        }
        put!(
            self,
            "<text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\">{state}</text>",
            x + 23.0,
            y + 9.0
        );
    }

    fn legend_shape(&mut self, x: f64, y: f64, class: &str, shape: &str, word: &str) {
        put!(
            self,
            "<g class=\"{class}\" transform=\"translate({:.1} {:.1})\">{shape}</g>\
             <text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\">{word}</text>",
            x + 6.0,
            y + 6.0,
            x + 16.0,
            y + 9.0
        );
    }
}

/// The finest round step with few enough numbers; days where hours are too many.
fn axis_step(end_millis: u64) -> u64 {
    const DAY: u64 = 86_400_000;
    let round = AXIS_STEPS
        .into_iter()
        .find(|step| end_millis / step <= MAX_AXIS_STEPS);
    round.unwrap_or_else(|| end_millis.div_ceil(MAX_AXIS_STEPS).div_ceil(DAY).max(1) * DAY)
}

fn axis_label(millis: u64) -> String {
    let (hours, minutes, rest) = (millis / 3_600_000, millis / 60_000 % 60, millis % 60_000);
    let mut label = String::new();
    for (count, unit) in [(hours, 'h'), (minutes, 'm')] {
        if count > 0 {
            // Writing to a String does not fail.
            let _ = write!(label, "{count}{unit}");
        }
    }
    if rest > 0 {
        label.push_str(&format_duration(Span::from_millis(rest)));
    }
    if label.is_empty() { "0".to_owned() } else { label }
}

fn seconds(at: Time) -> String {
    format!("{:.3}s", at.since(Time::ZERO).as_secs_f64())
}

const fn probe_class(result: ProbeResult) -> &'static str {
    match result {
        ProbeResult::Success => "ok",
        ProbeResult::Warning => "warning",
        ProbeResult::Failure => "failed",
        ProbeResult::Look => "look",
        ProbeResult::Error => "error",
    }
}

const fn probe_shape(result: ProbeResult) -> &'static str {
    match result {
        ProbeResult::Success => "<path d=\"M0-4V4\"/>",
        ProbeResult::Warning => "<path d=\"M0-4L4 3H-4Z\"/>",
        ProbeResult::Failure => "<path d=\"M-3.5-3.5L3.5 3.5M3.5-3.5L-3.5 3.5\"/>",
        ProbeResult::Look => "<circle r=\"2.6\"/>",
        ProbeResult::Error => "<path d=\"M0-4L4 0L0 4L-4 0Z\"/>",
    }
}

const fn mark_class(sort: MarkSort) -> &'static str {
    match sort {
        MarkSort::Kill => "kill",
        MarkSort::Signal => "signal",
        MarkSort::ForcedKill => "forced",
        MarkSort::Exit => "exit",
        MarkSort::Restart => "restart",
        MarkSort::Hook => "hook",
        MarkSort::Agent => "agent",
        MarkSort::Note => "note",
    }
}

const fn mark_shape(sort: MarkSort) -> &'static str {
    match sort {
        MarkSort::Kill => "<path d=\"M-4-3H4L0 4Z\"/>",
        MarkSort::Signal => "<path d=\"M0-4V2M-3-1L0 3L3-1\"/>",
        MarkSort::ForcedKill => "<path d=\"M-4-3H4L0 1ZM-4 0H4L0 4Z\"/>",
        MarkSort::Exit => "<rect x=\"-3\" y=\"-3\" width=\"6\" height=\"6\"/>",
        MarkSort::Restart => "<path d=\"M3.2-1.6A3.6 3.6 0 1 0 3.6 1M3.8-4V-1H.8\"/>",
        MarkSort::Hook => "<circle r=\"3\"/>",
        MarkSort::Agent => "<path d=\"M-4 0H4\"/>",
        MarkSort::Note => "<circle r=\"1.8\"/>",
    }
}

/// Text that is safe between tags and in attributes.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                c if c.is_control() => f.write_str(" ")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_few_round_numbers() {
        for end in [
            1,
            900,
            1_000,
            42_000,
            300_000,
            3_600_000,
            86_400_000,
            86_400_000 * 400,
        ] {
            assert!(end / axis_step(end) <= MAX_AXIS_STEPS, "{end}");
        }
        assert_eq!(axis_step(300_000), 60_000);
        assert_eq!(axis_label(90_000), "1m30s");
        assert_eq!(axis_label(0), "0");
        assert_eq!(axis_label(500), "500ms");
        assert_eq!(axis_label(5_400_000), "1h30m");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(
            Escaped("<a b=\"c\">&\u{7}").to_string(),
            "&lt;a b=&quot;c&quot;&gt;&amp; "
        );
    }
}
