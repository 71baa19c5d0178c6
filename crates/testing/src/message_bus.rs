//! A D-Bus daemon of a test's own, on which everybody may do everything.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::requires;

/// A bus that ends with this.
#[derive(Debug)]
pub struct MessageBus {
    address: String,
    process: Child,
}

impl MessageBus {
    /// `None` if the machine has no such program. The directory gets the bus's socket and its settings.
    ///
    /// # Panics
    ///
    /// If the program is there and does not start.
    pub fn start(directory: &Path) -> Option<Self> {
        let config = directory.join("bus.conf");
        let text = format!(
            "<busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\">\
             <allow user=\"*\"/><allow own=\"*\"/><allow send_destination=\"*\" eavesdrop=\"true\"/>\
             <allow eavesdrop=\"true\"/></policy></busconfig>",
            directory.join("daemon").display()
        );
        std::fs::write(&config, text).expect("a file");
        let started = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--print-address"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        if !requires("Debian's dbus-daemon", started.is_ok()) {
            return None;
        }
        let mut process = started.ok()?;
        let mut address = String::new();
        let output = process.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut address).expect("a line");
        let address = address.trim().to_owned();
        Some(Self { address, process })
    }

    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for MessageBus {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
