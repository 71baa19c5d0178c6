//! The live view, on a terminal made for the test.

use std::fs::File;
use std::io::Read as _;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;

use super::harness::eventually;
use super::world::{World, e2e};

/// A run on a terminal, and all that it wrote there.
struct Screen {
    child: Child,
    terminal: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn open(world: &World, spec: &serde_json::Value) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = File::options().read(true).write(true).open(name).unwrap();
        let file = world.manifest("web", spec);
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = world.command("run");
        command
            .arg(file)
            .args(["--runtime", &world.runtime_flag()])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        let child = command
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&written);
        let mut master = File::from(master);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = master.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self {
            child,
            terminal,
            written,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    fn until(&self, what: &str) {
        eventually(what, || self.text().contains(what).then_some(()));
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.terminal)
            .unwrap()
            .local_modes
            .contains(LocalModes::ECHO)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

e2e!(
    the_table_follows_the_pod_and_the_terminal_is_put_back,
    [Process],
    |world| {
        let app = world.ready_demo("app", &["--ignore", "SIGTERM"]);
        let mut screen = Screen::open(
            world,
            &json!({"containers": [app], "terminationGracePeriodSeconds": 3600}),
        );
        screen.until("CONTAINER");
        screen.until("Ctrl-C stops the pods");
        assert!(!screen.echoes(), "typed characters would disturb the table");
        // A second result of the probe is drawn without anything new in the log.
        screen.until("readiness \x1b[0m\x1b[32m|\x1b[0m\x1b[32m|");
        screen.signal(Signal::INT);
        screen.until("3599s left");
        screen.until("Ctrl-C again kills");
        screen.signal(Signal::INT);
        assert_eq!(screen.child.wait().unwrap().code(), Some(130));
        screen.until("\x1b[?25h");
        assert!(screen.echoes());
        let text = screen.text();
        assert!(text.contains("\x1b[?25l"), "the cursor was hidden");
        assert!(!text.contains("\x1b[2J"), "the screen is never wiped");
    }
);
