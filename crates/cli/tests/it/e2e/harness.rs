//! An agent under test: what it prints, as it prints it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::Deref;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a line may take to come; nothing a test waits for takes a tenth of it on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
/// How often a condition is looked at that nothing announces.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until something is there.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} in time");
        std::thread::sleep(LOOK);
    }
}

/// One event line.
#[derive(Clone, Debug)]
pub(crate) struct Line(pub(crate) Value);

impl Deref for Line {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl Line {
    pub(crate) fn t(&self) -> f64 {
        self["t"].as_f64().expect("every line has its time")
    }

    /// Whether the detail of a probe has this text.
    pub(crate) fn says(&self, text: &str) -> bool {
        self["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains(text))
    }

    /// When a probe began; its line is of its end.
    pub(crate) fn began(&self) -> f64 {
        self.t() - self["latencyMs"].as_f64().expect("a probe has its latency") / 1e3
    }

    /// Its type, and where it has one the thing that matters most: `probe:liveness:failure`, `signal:SIGTERM`.
    pub(crate) fn brief(&self) -> String {
        let field = |name: &str| match &self[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let kind = field("type");
        match kind.as_str() {
            "probe" => format!("probe:{}:{}", field("kind"), field("outcome")),
            "killing" => format!("killing:{}", field("reason")),
            "hook" => format!("hook:{}:{}", field("hook"), field("outcome")),
            "signal" => format!("signal:{}", field("signal")),
            "exited" => format!("exited:{}", field("exitCode")),
            "phase" => format!("phase:{}", field("phase")),
            "running" => format!("running:{}", field("restartCount")),
            _ => kind,
        }
    }

    pub(crate) fn is(&self, container: &str, brief: &str) -> bool {
        let its = self["container"].as_str().unwrap_or("");
        its == container && self.brief() == brief
    }
}

/// A running `pulselet run -o json`.
pub(crate) struct Agent {
    child: Child,
    lines: Receiver<Line>,
    stderr: Option<JoinHandle<String>>,
    pub(crate) seen: Vec<Line>,
}

/// What an agent was, once it has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) seen: Vec<Line>,
    pub(crate) stderr: String,
}

impl Agent {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pulselet starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut pipe = child.stderr.take().expect("stderr is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // A last line may be cut off where the agent was killed.
                if let Ok(value) = serde_json::from_str(&line) {
                    let _ = sender.send(Line(value));
                }
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = pipe.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self {
            child,
            lines,
            stderr: Some(stderr),
            seen: Vec::new(),
        }
    }

    /// Reads on until a line fits.
    pub(crate) fn until(&mut self, what: &str, fits: impl Fn(&Line) -> bool) -> Line {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if fits(&line) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no {what} in time; {}", self.transcript()),
                Err(RecvTimeoutError::Disconnected) => {
                    let stderr = self.stderr.take().map(JoinHandle::join);
                    panic!("pulselet ended before {what}; {}\n{stderr:?}", self.transcript())
                }
            }
        }
    }

    /// Reads on until a container (or the pod, whose name is empty) has such a line; see [`Line::brief`].
    pub(crate) fn until_is(&mut self, container: &str, brief: &str) -> Line {
        self.until(&format!("{brief} of {container:?}"), |line| {
            line.is(container, brief)
        })
    }

    /// The same for a line that may have come before another one that was waited for.
    pub(crate) fn sooner_or_later(&mut self, what: &str, fits: impl Fn(&Line) -> bool) -> Line {
        let known = self.seen.iter().find(|line| fits(line)).cloned();
        known.unwrap_or_else(|| self.until(what, fits))
    }

    pub(crate) fn transcript(&self) -> String {
        transcript(&self.seen)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("the agent is there");
    }

    /// Ctrl-C, then everything until the end.
    pub(crate) fn interrupt(self) -> Ended {
        self.signal(Signal::INT);
        self.finish()
    }

    /// Dies without a chance to do anything.
    pub(crate) fn kill(mut self) -> Ended {
        self.child.kill().expect("the agent can be killed");
        self.finish()
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end; {}", self.transcript()),
            }
        }
        let code = self.child.wait().expect("the agent has ended").code();
        let stderr = self.stderr.take().expect("read once").join();
        Ended {
            code,
            seen: std::mem::take(&mut self.seen),
            stderr: stderr.expect("reading stderr does not panic"),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // After a failure; one that has ended cannot be killed, which is no matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    pub(crate) fn transcript(&self) -> String {
        transcript(&self.seen)
    }

    /// The lines of a container (or of the pod) that fit.
    pub(crate) fn all<'a>(&'a self, container: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Line> {
        of(&self.seen, container, kind)
    }

    pub(crate) fn count(&self, container: &str, brief: &str) -> usize {
        self.seen.iter().filter(|line| line.is(container, brief)).count()
    }
}

/// Lines whose brief begins with `kind`.
pub(crate) fn of<'a>(lines: &'a [Line], container: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Line> {
    lines.iter().filter(move |line| {
        line["container"].as_str().unwrap_or("") == container && line.brief().starts_with(kind)
    })
}

/// The lines from the first such line on.
pub(crate) fn since<'a>(lines: &'a [Line], container: &str, brief: &str) -> &'a [Line] {
    &lines[place(lines, container, brief)..]
}

/// The lines before the first such line.
pub(crate) fn before<'a>(lines: &'a [Line], container: &str, brief: &str) -> &'a [Line] {
    &lines[..place(lines, container, brief)]
}

fn place(lines: &[Line], container: &str, brief: &str) -> usize {
    let place = lines.iter().position(|line| line.is(container, brief));
    place.unwrap_or_else(|| panic!("no {brief} of {container:?} in\n{}", transcript(lines)))
}

fn transcript(lines: &[Line]) -> String {
    let lines = lines.iter().map(|line| line.0.to_string());
    lines.collect::<Vec<_>>().join("\n")
}

/// Asserts that lines come in this order, with anything between them.
pub(crate) fn in_order(lines: &[Line], expected: &[(&str, &str)]) {
    let mut expected = expected.iter().peekable();
    for line in lines {
        if expected
            .peek()
            .is_some_and(|(container, brief)| line.is(container, brief))
        {
            expected.next();
        }
    }
    assert!(
        expected.peek().is_none(),
        "missing {:?} in\n{}",
        expected.peek(),
        transcript(lines)
    );
}
